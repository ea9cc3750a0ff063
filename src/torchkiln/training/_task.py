"""`Task`: what only an application knows about its training, and the values that it hands over."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor


def first_not_finite(losses: Tensor) -> int:
    """Return the number of the first loss that is NaN or infinite."""
    return int(torch.nonzero(~torch.isfinite(losses)).flatten()[0])


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

    def describe_loss(self, losses: Tensor) -> str:
        """Say which of the losses of this step is not finite."""
        part = first_not_finite(losses)
        return (
            f"the loss is {float(losses[part])} {self}, step {self.step + 1} of {self.num_steps}, "
            f"mini-batch {part + 1} of {len(losses)}"
        )

    def __str__(self) -> str:
        """Say it as people do, who count from 1."""
        return f"in epoch {min(self.epoch + 1, self.num_epochs)} of {self.num_epochs}"


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class StepOutcome:
    """What came of one call of a training step.

    Args:
        losses: Of each mini-batch; training ends if one of them is not finite.
        update_losses: Mean loss of each weight update of the call.
        loss_sum: Losses times samples.
        samples: Real ones.
        figures: What else is told and kept about every call, by name.
        totals: What is summed up over the epoch, by name.
        overhead_s: Seconds of the call that were no training.
    """

    losses: Tensor
    update_losses: list[float]
    loss_sum: float
    samples: int
    figures: Mapping[str, float] = field(default_factory=dict)
    totals: Mapping[str, Tensor] = field(default_factory=dict)
    overhead_s: float = 0.0

    @property
    def loss(self) -> float:
        """Mean over the real samples."""
        return self.loss_sum / max(self.samples, 1)

    @classmethod
    def weighted(
        cls, losses: Tensor, counts: Tensor, per_update: int, overhead_s: float = 0.0
    ) -> StepOutcome:
        """Weigh mini-batches by what is real in them.

        Args:
            losses: Of each mini-batch.
            counts: Its real samples.
            per_update: Mini-batches of one weight update.
            overhead_s: Seconds of the call that were no training.
        """
        weighted = losses.double() * counts
        by_update = weighted.view(-1, per_update).sum(dim=1)
        counts_by_update = counts.view(-1, per_update).sum(dim=1)
        return cls(
            losses=losses,
            update_losses=(by_update / counts_by_update).tolist(),
            loss_sum=float(weighted.sum()),
            samples=int(counts.sum()),
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
    """What is trained, and what only the application knows about it."""

    def compile(self, batch: Any | None) -> float | None:
        """Get ready for batches like this one (None: there is nothing left to train).

        Returns:
            The seconds that took; None if nothing is compiled.
        """

    def step(self, batch: Any, place: Place) -> StepOutcome:
        """Train on one batch: one weight update, or several."""

    def use_learning_rate(self) -> None:
        """Take note of numbers that changed in the optimiser."""

    def explain(self, losses: Tensor, batch: Any, place: Place) -> str:
        """Say which loss is not finite, where, and what can be done about it."""

    def validate(self, totals: Mapping[str, Tensor], check: Callable[[], None]) -> Validation:
        """Judge the present weights between two epochs.

        Args:
            totals: Those of the epoch that is done.
            check: To be called between batches; raises if the person wants to stop.
        """

    def finish(self, check: Callable[[], None]) -> str | None:
        """Do what comes after the last epoch; return why the run is a failure all the same."""
