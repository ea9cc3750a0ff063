"""The numbers of an update as the small tensors that a program takes as inputs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchkiln.runtime.optim._arrangement import Arrangement
from torchkiln.runtime.optim._hyper import Hyper

# Limit of the gradients' norm, scale of the loss, its inverse, and three parts of the share that a
# micro-batch has in the mean of gradients.
_LIMIT, _SCALE, _UNSCALE, _SHARE = range(4)
_NUM_SHARE_PARTS = 3
_NUM_SCALARS = _SHARE + _NUM_SHARE_PARTS


def limit_of_norm(scalars: Tensor) -> Tensor:
    """Return the limit of the gradients' joint norm."""
    return scalars[_LIMIT]


def scale_of_loss(scalars: Tensor) -> Tensor:
    """Return what the loss is multiplied with."""
    return scalars[_SCALE]


def inverse_scale(scalars: Tensor) -> Tensor:
    """Return what undoes the scale of the loss."""
    return scalars[_UNSCALE]


def share_of_micro_batch(scalars: Tensor, dtype: torch.dtype) -> Tensor:
    """Return what a sum of gradients of this dtype is multiplied with to be their mean.

    It has the digits of the dtype, so the product has the bits of one with Python's `1.0 / count`.
    """
    if dtype not in _WIDE:
        return scalars[_SHARE]
    parts = scalars[_SHARE : _SHARE + _NUM_SHARE_PARTS].double().unbind()
    return parts[0] + parts[1] + parts[2]


_WIDE = (torch.float64, torch.complex128)


def _in_parts(number: float) -> list[float]:
    """Return numbers of float32 whose sum is the number with all digits of float64.

    The first is the number in float32. Scalars are one small tensor of float32; a second one, in
    float64, would be one more input of every step that nearly nobody needs.
    """
    parts: list[float] = []
    for _ in range(_NUM_SHARE_PARTS):
        parts.append(float(np.float32(number)))
        number -= parts[-1]
    return parts


def empty_tables(arrangement: Arrangement) -> list[Tensor]:
    """Return memory for the tables: one for each compute dtype, and the scalars that all share."""
    device = arrangement.device
    width = _width(arrangement)
    tables = [
        torch.empty((_num_rows(arrangement, dtype), width), dtype=dtype, device=device)
        for dtype in arrangement.dtypes()
    ]
    return [*tables, torch.empty((_NUM_SCALARS,), dtype=torch.float32, device=device)]


def scalars_of(arrangement: Arrangement, hyper: Sequence[Tensor]) -> Iterator[tuple[Tensor, ...]]:
    """Yield the numbers of each row, from the tables of the compute dtypes."""
    dtypes = arrangement.dtypes()
    position = dict.fromkeys(dtypes, 0)
    for row in arrangement.rows:
        yield hyper[dtypes.index(row.dtype)][position[row.dtype]].unbind()
        position[row.dtype] += 1


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
        self._kept_scalars = torch.empty(0)
        # The numbers of the scalars that are kept.
        self._made_of: tuple[float, float, int] | None = None

    def upcoming(
        self, hyper: Hyper, steps: list[int], num_updates: int, num_micro_batches: int = 1
    ) -> list[list[Tensor]]:
        """Return the tables of each of the next updates.

        Args:
            hyper: The optimiser's numbers.
            steps: How many updates each row has seen.
            num_updates: How many to look ahead.
            num_micro_batches: How many share an update, in all replicas and processes.
        """
        scalars = self._scalars(hyper.max_grad_norm, hyper.loss_scaling, num_micro_batches)
        updates = []
        for ahead in range(1, num_updates + 1):
            tables = [
                self._table(str(dtype), self._numbers(hyper, steps, ahead, dtype), dtype)
                for dtype in self._dtypes
            ]
            updates.append([*tables, scalars])
        return updates

    def _scalars(self, limit: float, scale: float, num_micro_batches: int) -> Tensor:
        known = (limit, scale, num_micro_batches)
        if self._made_of != known:
            numbers = [limit, scale, 1.0 / scale, *_in_parts(1.0 / num_micro_batches)]
            self._kept_scalars = torch.tensor(numbers, dtype=torch.float32, device=self._device)
            self._made_of = known
        return self._kept_scalars

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
