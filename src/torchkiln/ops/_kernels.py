"""Which native kernel serves a tensor, and how many threads it gets."""

from __future__ import annotations

import ctypes
import functools
import logging
from typing import Any

import torch
from torch import Tensor

from torchkiln.ops._native import load_native

_SUFFIXES = {torch.float32: "f32", torch.float64: "f64"}
# Below this many numbers per thread, waking another one costs more than it saves.
_MIN_NUMEL_PER_THREAD = 32_768
_log = logging.getLogger("torchkiln")


@functools.cache
def _function(source: str, name: str, dtype: torch.dtype) -> Any:
    """Return a kernel; None where there is none for `dtype`, or no compiler."""
    library = load_native(source) if dtype in _SUFFIXES else None
    function = getattr(library, f"torchkiln_{name}_{_SUFFIXES.get(dtype)}", None)
    if function is None:
        _log.debug("%s runs in plain torch for %s: no native kernel", name, dtype)
    else:
        function.restype = ctypes.c_bool
    return function


def find_kernel(source: str, name: str, x: Tensor) -> Any:
    """Return the native kernel `name` for tensors like `x`; None where plain torch must do.

    Args:
        source: The file it is in, without its ending.
        name: Of the kernel.
        x: Whose dtype and device decide.
    """
    return _function(source, name, x.dtype) if x.device.type == "cpu" else None


def num_threads(numel: int) -> int:
    """Return how many of torch's threads to use for work on `numel` numbers."""
    return max(1, min(torch.get_num_threads(), numel // _MIN_NUMEL_PER_THREAD))
