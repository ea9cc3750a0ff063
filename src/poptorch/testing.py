"""Comparing nested results; import it as `poptorch.testing`."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def allclose(
    expected: Any,
    other: Any,
    rtol: float = 1e-05,
    atol: float = 1e-08,
    equal_nan: bool = False,
) -> bool:
    """Return whether two tensors, or tuples and lists of them, are close throughout.

    Another type, length or shape counts as different; nothing is raised.
    """
    if type(expected) is not type(other):
        return False
    if isinstance(expected, Tensor):
        return expected.shape == other.shape and torch.allclose(
            expected, other.to(expected.dtype), rtol, atol, equal_nan
        )
    if isinstance(expected, tuple | list):
        return len(expected) == len(other) and all(
            allclose(a, b, rtol, atol, equal_nan) for a, b in zip(expected, other, strict=True)
        )
    return bool(expected == other)


__all__ = ["allclose"]
