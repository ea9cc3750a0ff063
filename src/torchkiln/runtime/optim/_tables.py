"""The numbers of an update as the small tensors that a program takes as inputs."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from torchkiln.runtime.optim._arrangement import Arrangement
from torchkiln.runtime.optim._hyper import Hyper

# Limit of the gradients' norm, scale of the loss, and its inverse.
_NUM_SCALARS = 3


def empty_tables(arrangement: Arrangement) -> list[Tensor]:
    """Return memory for the tables: one for each compute dtype, and the scalars that all share."""
    device = arrangement.device
    width = _width(arrangement)
    tables = [
        torch.empty((_num_rows(arrangement, dtype), width), dtype=dtype, device=device)
        for dtype in arrangement.dtypes()
    ]
    return [*tables, torch.empty((_NUM_SCALARS,), dtype=torch.float32, device=device)]


def _width(arrangement: Arrangement) -> int:
    rules = arrangement.recipe.rules
    return max((rules[row.group].num_hyper for row in arrangement.rows), default=0)


def _num_rows(arrangement: Arrangement, dtype: torch.dtype) -> int:
    return sum(row.dtype == dtype for row in arrangement.rows)


class HyperTables:
    """Makes the tables of update after update; those whose numbers stay the same are kept."""

    def __init__(self, arrangement: Arrangement) -> None:
        self._rules = arrangement.recipe.rules
        self._rows = arrangement.rows
        self._dtypes = arrangement.dtypes()
        self._device = arrangement.device
        self._width = _width(arrangement)
        self._kept: dict[str, tuple[Any, Tensor]] = {}

    def upcoming(self, hyper: Hyper, steps: list[int], num_updates: int) -> list[list[Tensor]]:
        """Return the tables of each of the next updates.

        Args:
            hyper: The optimiser's numbers.
            steps: How many updates each row has seen.
            num_updates: How many to look ahead.
        """
        scale = hyper.loss_scaling
        scalars = [hyper.max_grad_norm, scale, 1.0 / scale]
        updates = []
        for ahead in range(1, num_updates + 1):
            tables = [
                self._table(str(dtype), self._numbers(hyper, steps, ahead, dtype), dtype)
                for dtype in self._dtypes
            ]
            updates.append([*tables, self._table("scalars", scalars, torch.float32)])
        return updates

    def _numbers(
        self, hyper: Hyper, steps: list[int], ahead: int, dtype: torch.dtype
    ) -> list[list[float]]:
        numbers = [
            self._rules[row.group].hyper(hyper.groups[row.group], step + ahead)
            for row, step in zip(self._rows, steps, strict=True)
            if row.dtype == dtype
        ]
        return [row + [0.0] * (self._width - len(row)) for row in numbers]

    def _table(self, name: str, rows: list[Any], dtype: torch.dtype) -> Tensor:
        """Return the numbers as a tensor, the one of the step before if they are the same."""
        known, table = self._kept.get(name, (None, None))
        if table is None or known != rows:
            table = torch.tensor(rows, dtype=dtype, device=self._device)
            self._kept[name] = (rows, table)
        return table
