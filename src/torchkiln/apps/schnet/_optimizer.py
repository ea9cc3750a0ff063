"""The optimiser of the benchmark."""

from __future__ import annotations

import inspect
from collections.abc import Iterable

import torch
from torch import nn


def make_adam(parameters: Iterable[nn.Parameter], learning_rate: float) -> torch.optim.Adam:
    """Return torch's own Adam, made without importing torch's compiler.

    torch hides `add_param_group`, which the constructor calls, from `torch.compile`, and imports
    `torch._dynamo` (and sympy) at the first call to do so: a quarter of the time to the first step
    of a program that was compiled long ago. Nothing is being compiled here, so the function is
    called as it was written.
    """
    base = torch.optim.Optimizer
    hidden = base.add_param_group
    base.add_param_group = inspect.unwrap(hidden)  # type: ignore[method-assign]
    try:
        return torch.optim.Adam(parameters, lr=learning_rate)
    finally:
        base.add_param_group = hidden  # type: ignore[method-assign]
