"""In which dtype an optimiser's state and sums of gradients are kept.

Half precision has too few digits for either: a second moment below 6e-8 is zero in float16, and
dividing by its root throws the weights away. So state of half-precision parameters is float32.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from torchkiln.checkpoints._precision import HALVES as HALVES
from torchkiln.core import OptimizerError

# The name of gradient sums among the names of state.
SUMS = "grad"


@dataclass(frozen=True, slots=True)
class StateDtypes:
    """Which state is kept in half precision because the user asked for it."""

    halved: tuple[tuple[str, torch.dtype], ...] = ()

    def of(self, name: str, param: Tensor) -> torch.dtype:
        """Return the dtype of the state `name` (or of `SUMS`) that belongs to `param`."""
        asked = dict(self.halved).get(name)
        if asked is not None and not param.is_complex():
            return asked
        return torch.float32 if param.dtype in HALVES else param.dtype

    def difference(self, other: StateDtypes) -> list[str]:
        """Say which dtypes `other` has instead."""
        mine, theirs = dict(self.halved), dict(other.halved)
        return [
            f"dtype of {name}: {mine.get(name, 'wide')} -> {theirs.get(name, 'wide')}"
            for name in sorted({*mine, *theirs})
            if mine.get(name) != theirs.get(name)
        ]


def read_state_dtypes(optimizer: torch.optim.Optimizer) -> StateDtypes:
    """Read the attribute `state_dtypes` (name of state -> dtype), which few optimisers have.

    float32 and float64 there ask for what happens anyway.

    Raises:
        OptimizerError: if a dtype is no floating-point one.
    """
    chosen = getattr(optimizer, "state_dtypes", None) or {}
    for name, dtype in chosen.items():
        if not (isinstance(dtype, torch.dtype) and dtype.is_floating_point):
            raise OptimizerError(
                f"state_dtypes[{name!r}] is {dtype!r}, which cannot hold optimiser state; use "
                "torch.float32, torch.float16 or torch.bfloat16"
            )
    return StateDtypes(tuple(sorted((n, d) for n, d in chosen.items() if d in HALVES)))


def widened(tensor: Tensor) -> Tensor:
    """Return half-precision values in float32, others as they are."""
    return tensor.float() if tensor.dtype in HALVES else tensor
