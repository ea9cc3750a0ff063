"""`Notes`: numbers that each process tells all others together with the gradients of an update."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, final

import torch
from torch import Tensor

from torchkiln.core import ArgumentError

# Gets what forward returned for each micro-batch of an update; returns the numbers of this process.
NoteWriter = Callable[[list[Any]], Sequence[float]]


@final
class Notes:
    """What this process wants to tell, and what all of them told in the latest call.

    They travel in the collective that adds up gradients anyway, so they cost nothing.
    """

    def __init__(self) -> None:
        # How many numbers each process writes for an update.
        self.count = 0
        self._write: NoteWriter | None = None
        self._told: list[Tensor] = []

    def agree(self, count: int, write: NoteWriter) -> None:
        """Let `write` say `count` numbers for each update from now on."""
        if isinstance(count, bool) or not isinstance(count, int) or count < 0:
            raise ArgumentError(f"num_notes must be a whole number of at least 0, got {count!r}")
        self.count, self._write = count, write
        self._told = []

    def forget(self) -> None:
        """Begin a call."""
        self._told = []

    def written(self, outputs: list[Any]) -> list[float]:
        """Return the numbers of this process for an update whose micro-batches returned `outputs`.

        Raises:
            ArgumentError: if they are not as many as was agreed.
        """
        if not self.count:
            return []
        assert self._write is not None
        numbers = [float(number) for number in self._write(outputs)]
        if len(numbers) != self.count:
            raise ArgumentError(
                f"the function given to exchange_notes returned {len(numbers)} numbers, but "
                f"{self.count} were agreed on; return as many for every update"
            )
        return numbers

    def hear(self, rows: Tensor) -> None:
        """Take what all processes wrote for an update, a row for each."""
        self._told.append(rows)

    def told(self, num_ranks: int) -> Tensor:
        """Return what all processes wrote in the latest call: [updates, processes, numbers]."""
        if not self._told:
            return torch.zeros((0, num_ranks, self.count))
        return torch.stack(self._told)
