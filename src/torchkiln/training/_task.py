"""`Task`: what only an application knows about its training, and the values that it hands over."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor

from torchkiln.training._folding import Folding
from torchkiln.training._notes import StepResult
from torchkiln.training._stopping import Stopping


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a run is.

    Args:
        epoch: The running one, from 0.
        num_epochs: Of the whole run.
        step: Number of the call within the epoch, from 0.
        num_steps: Calls of the epoch.
        updates: Weight updates since the beginning.
    """

    epoch: int
    num_epochs: int
    step: int
    num_steps: int
    updates: int

    def describe(self, bad: BadLoss) -> str:
        """Say which of the losses of this step is not finite."""
        where = f" (rank {bad.rank})" if bad.num_ranks > 1 else ""
        return (
            f"the loss is {bad.value} {self}, step {self.step + 1} of {self.num_steps}, "
            f"mini-batch {bad.number + 1} of {len(bad.losses)}{where}"
        )

    def __str__(self) -> str:
        """Say it as people do, who count from 1."""
        return f"in epoch {min(self.epoch + 1, self.num_epochs)} of {self.num_epochs}"


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class BadLoss:
    """The first loss of a call that is NaN or infinite.

    Args:
        losses: Of each mini-batch of the call, of all processes.
        number: Which of them it is.
        rank: The process that has the mini-batch.
        num_ranks: How many processes there are.
        own_number: Which of that process' mini-batches it is.
    """

    losses: Tensor
    number: int
    rank: int
    num_ranks: int
    own_number: int

    @classmethod
    def find(cls, losses: Tensor, folding: Folding) -> BadLoss | None:
        """Return the first of `losses` that is not finite; None: they all are."""
        if bool(torch.isfinite(losses).all()):
            return None
        number = int(torch.nonzero(~torch.isfinite(losses)).flatten()[0])
        rank, own_number = folding.owner(number)
        return cls(
            losses=losses,
            number=number,
            rank=rank,
            num_ranks=folding.ranks,
            own_number=own_number,
        )

    @property
    def value(self) -> float:
        return float(self.losses[self.number])


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class StepOutcome:
    """What came of one call of a training step, in all processes that take part.

    Args:
        losses: Of each mini-batch; training ends if one of them is not finite.
        update_losses: Mean loss of each weight update of the call.
        loss_sum: Losses times samples.
        samples: Real ones.
        own_samples: Those that this process trained on.
        is_stop_wanted: Whether one of several processes wants to stop.
        figures: What else is told and kept about every call, by name.
        totals: What is summed up over the epoch, by name.
        overhead_s: Seconds of the call that were no training.
    """

    losses: Tensor
    update_losses: list[float]
    loss_sum: float
    samples: int
    own_samples: int
    is_stop_wanted: bool = False
    figures: Mapping[str, float] = field(default_factory=dict)
    totals: Mapping[str, Tensor] = field(default_factory=dict)
    overhead_s: float = 0.0

    @property
    def loss(self) -> float:
        """Mean over the real samples."""
        return self.loss_sum / max(self.samples, 1)

    @classmethod
    def weighted(
        cls, result: StepResult, per_update: int, own_samples: int, overhead_s: float = 0.0
    ) -> StepOutcome:
        """Weigh mini-batches by what is real in them.

        Args:
            result: Of the call.
            per_update: Mini-batches of one weight update, those of all processes.
            own_samples: Real ones that this process trained on.
            overhead_s: Seconds of the call that were no training.
        """
        losses, counts = result.losses, result.counts
        weighted = losses.double() * counts
        by_update = weighted.view(-1, per_update).sum(dim=1)
        counts_by_update = counts.view(-1, per_update).sum(dim=1)
        return cls(
            losses=losses,
            update_losses=(by_update / counts_by_update).tolist(),
            loss_sum=float(weighted.sum()),
            samples=int(counts.sum()),
            own_samples=own_samples,
            is_stop_wanted=result.is_stop_wanted,
            overhead_s=overhead_s,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Validation:
    """What an application finds out between two epochs.

    Args:
        mae: Mean absolute error, where the application has one.
        loss: Mean loss of the held-out samples.
        figures: What else is told and kept about every epoch, by name.
        warning: What the person should know.
    """

    mae: float | None = None
    loss: float | None = None
    figures: Mapping[str, float] = field(default_factory=dict)
    warning: str | None = None

    @property
    def error(self) -> float | None:
        """What weights are judged by: the smaller, the better."""
        return self.loss if self.mae is None else self.mae


class Task(Protocol):
    """What is trained, and what only the application knows about it.

    With several processes, each has a task of its own; all their methods are called by all of them,
    in the same order.
    """

    @property
    def folding(self) -> Folding:
        """The order of the mini-batches of a call."""

    def compile(self, batch: Any | None) -> float | None:
        """Get ready for batches like this one (None: there is nothing left to train).

        Returns:
            The seconds that took; None if nothing is compiled.
        """

    def step(self, batch: Any, place: Place, is_stopping: Callable[[], bool]) -> StepOutcome:
        """Train on one batch: one weight update, or several.

        Args:
            batch: Of this process.
            place: Where the run is.
            is_stopping: Whether this process wants to stop, which it tells the others.
        """

    def use_learning_rate(self) -> None:
        """Take note of numbers that changed in the optimiser."""

    def explain(self, bad: BadLoss, batch: Any, place: Place) -> str:
        """Say which loss is not finite, where, and what can be done about it.

        Called by the process that has the mini-batch.
        """

    def validate(self, totals: Mapping[str, Tensor], stopping: Stopping) -> Validation:
        """Judge the present weights between two epochs; with the same result in all processes.

        Args:
            totals: Those of the epoch that is done.
            stopping: Divides the work among the processes; raises if the person wants to stop.
        """

    def finish(self, stopping: Stopping) -> str | None:
        """Do what comes after the last epoch; return why the run is a failure all the same."""
