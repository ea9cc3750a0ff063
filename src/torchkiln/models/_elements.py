"""Rows of tables by atomic number."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

# Atomic numbers below this have an embedding; PyG's SchNet fixed the number.
NUM_ELEMENTS = 100


def element_rows(table: Tensor, z: Tensor) -> Tensor:
    """Return `table[z]`; in backward, row 0, which stands for no atom, gets no gradient.

    Not `torch.nn.functional.embedding`: its gradient is a scatter, which compiled code does slowly
    and in the order in which threads come. This one is a product, the same bits each time.
    """
    rows: Tensor = _ElementRows.apply(table, z)  # type: ignore[no-untyped-call]
    return rows


class _ElementRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, table: Tensor, z: Tensor) -> Tensor:
        ctx.save_for_backward(z)
        ctx.num_rows = len(table)
        return table.index_select(0, z)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        (grad,) = grads
        (z,) = ctx.saved_tensors
        numbers = torch.arange(ctx.num_rows, device=z.device)
        is_atom = (numbers[:, None] == z) & (numbers > 0)[:, None]
        return is_atom.to(grad.dtype) @ grad, None


@cache
def _masses() -> tuple[float, ...]:
    lines = Path(__file__).with_name("atomic_masses.txt").read_text().splitlines()
    return tuple(float(line) for line in lines if not line.startswith("#"))


def atomic_masses() -> Tensor:
    """Return the mass of each element by atomic number, in unified atomic mass units, float64."""
    return torch.tensor(_masses(), dtype=torch.float64)
