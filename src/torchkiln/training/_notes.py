"""`StepNotes`: what processes tell each other with every weight update, besides gradients."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor

from torchkiln.core import OptionsError
from torchkiln.training._folding import Folding


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class StepResult:
    """What came of the mini-batches of a call, those of all processes, in the order of `Folding`.

    Args:
        losses: One for each mini-batch.
        counts: Real samples in each.
        is_stop_wanted: Whether one of several processes wants to stop; they all know it.
    """

    losses: Tensor
    counts: Tensor
    is_stop_wanted: bool = False


@final
class StepNotes:
    """Loss and samples of each mini-batch, and whether this process wants to stop.

    They travel as float32 with the sum of the gradients, exactly, and cost no further message.

    Args:
        folding: Of the program.
        loss_of: Finds the loss among what forward returned.
    """

    def __init__(self, folding: Folding, loss_of: Callable[[Any], Tensor]) -> None:
        self._folding = folding
        self._loss_of = loss_of
        self._counts: list[list[float]] = []
        self._is_stopping: Callable[[], bool] = lambda: False

    @property
    def size(self) -> int:
        """Numbers that a process writes for an update."""
        return 1 + 2 * self._folding.own_per_update

    def begin(self, counts: Tensor, is_stopping: Callable[[], bool]) -> None:
        """Get ready for a call of the program.

        Args:
            counts: Real samples in each mini-batch of this process.
            is_stopping: Asked for each update; whether this process wants to stop.
        """
        by_update = counts.reshape(self._folding.updates, self._folding.own_per_update)
        self._counts = by_update.float().tolist()
        self._is_stopping = is_stopping

    def write(self, outputs: list[Any]) -> list[float]:
        """Return what the others shall know of one update.

        Args:
            outputs: What forward returned for each of this process' mini-batches.
        """
        losses = [one_number(self._loss_of(output)) for output in outputs]
        return [float(self._is_stopping()), *losses, *self._counts.pop(0)]

    def read(self, notes: Tensor) -> StepResult:
        """Return what all processes wrote in a call: [updates, ranks, `size`].

        Stages of one pipeline write the same losses and counts.
        """
        own = self._folding.own_per_update
        of_copies = notes[:, :: notes.shape[1] // self._folding.ranks]
        counts = of_copies[:, :, 1 + own :].to(torch.int64)
        return StepResult(
            losses=self._folding.join(of_copies[:, :, 1 : 1 + own]),
            counts=self._folding.join(counts),
            is_stop_wanted=bool(notes[:, :, 0].any()),
        )


def one_number(loss: Tensor) -> float:
    """Return the loss of a mini-batch.

    Raises:
        OptionsError: It is several numbers.
    """
    if loss.numel() != 1:
        raise OptionsError(
            "the loss that forward returns must be one number for each mini-batch, got "
            f"{loss.numel()}; return its mean, alone, last, or as 'loss' of a dict"
        )
    return float(loss)
