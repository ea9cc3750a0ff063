"""What of an optimiser may change between calls: its numbers."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from torchkiln.core import OptimizerError


@dataclass(frozen=True, slots=True)
class Hyper:
    """A snapshot of an optimiser's numbers."""

    groups: list[dict[str, Any]]
    max_grad_norm: float
    loss_scaling: float


def read_hyper(optimizer: torch.optim.Optimizer) -> Hyper:
    """Copy the optimiser's numbers, so that later edits wait for `set_optimizer`."""
    groups = []
    for index, group in enumerate(optimizer.param_groups):
        values = {key: plain_number(value) for key, value in group.items() if key != "params"}
        # What somebody wrote beside the attributes that the optimiser has is not looked at.
        betas = values.get("betas") if "betas" in optimizer.defaults else None
        if betas is not None and len(betas) != 2:
            raise OptimizerError(f"betas of group {index} must be two numbers, got {betas!r}")
        groups.append(values)
    limit = getattr(optimizer, "max_grad_norm", None)
    scale = getattr(optimizer, "loss_scaling", None)
    return Hyper(
        groups,
        math.inf if limit is None else float(limit),
        1.0 if scale is None else float(scale),
    )


def plain_number(value: Any) -> Any:
    """Return a number of torch, or numbers in a list or tuple, as Python's own."""
    if isinstance(value, Tensor):
        return value.item()
    if isinstance(value, list | tuple):
        return tuple(plain_number(entry) for entry in value)
    return value
