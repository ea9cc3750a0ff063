"""How far a run has come, and what it saw on the way."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from torchkiln.report import EpochRecord
from torchkiln.report._epoch_names import from_named, to_named

_NAMES = {"molecules": "samples"}  # as checkpoints had them before


@dataclass(slots=True)
class EpochSums:
    """What has been summed up of an epoch that is not done.

    Args:
        steps: Calls that were made.
        loss_sum: Losses times samples.
        samples: Real ones.
        seconds: Spent on training.
    """

    steps: int = 0
    loss_sum: float = 0.0
    samples: int = 0
    seconds: float = 0.0

    @property
    def loss(self) -> float:
        return self.loss_sum / max(self.samples, 1)


@dataclass(slots=True)
class History:
    """Everything that a resumed run takes over besides weights and optimiser.

    Args:
        epoch: The epoch that is being worked on.
        updates: Weight updates since the beginning.
        losses: Mean loss of each update; NaN where it had no sample, only filler.
        epochs: Those that are done.
        sums: Of the present epoch.
    """

    epoch: int = 0
    updates: int = 0
    losses: list[float] = field(default_factory=list)
    epochs: list[EpochRecord] = field(default_factory=list)
    sums: EpochSums = field(default_factory=EpochSums)

    def take(self, losses: Tensor, counts: Tensor, per_update: int, seconds: float) -> float:
        """Add one call; return its mean loss.

        Args:
            losses: Of each mini-batch.
            counts: Its real samples.
            per_update: Mini-batches of one weight update.
            seconds: Time since the call before.
        """
        weighted = losses.double() * counts
        by_update = weighted.view(-1, per_update).sum(dim=1)
        counts_by_update = counts.view(-1, per_update).sum(dim=1)
        self.losses += (by_update / counts_by_update).tolist()
        self.updates += len(by_update)
        samples, loss_sum = int(counts.sum()), float(weighted.sum())
        self.sums.steps += 1
        self.sums.loss_sum += loss_sum
        self.sums.samples += samples
        self.sums.seconds += seconds
        return loss_sum / max(samples, 1)

    def finish_epoch(self, record: EpochRecord) -> None:
        """Go on to the next epoch."""
        self.epochs.append(record)
        self.epoch += 1
        self.sums = EpochSums()

    def record(
        self,
        learning_rate: float,
        validation_mae: float | None = None,
        validation_loss: float | None = None,
    ) -> EpochRecord:
        """Return the present epoch as it would be reported."""
        sums = self.sums
        return EpochRecord(
            epoch=self.epoch,
            loss=sums.loss,
            seconds=sums.seconds,
            samples=sums.samples,
            samples_per_s=sums.samples / sums.seconds if sums.seconds else 0.0,
            learning_rate=learning_rate,
            validation_mae=validation_mae,
            validation_loss=validation_loss,
        )

    def steps(self) -> list[tuple[int, float]]:
        """Return (number of the update, loss) of those that had samples."""
        return [entry for entry in enumerate(self.losses) if not math.isnan(entry[1])]

    def to_checkpoint(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return tensors and facts; a loss an update is too much for JSON."""
        facts = {
            "epoch": self.epoch,
            "step": self.updates,
            "sums": dataclasses.asdict(self.sums),
            "epochs": [to_named(record, "samples") for record in self.epochs],
        }
        return {"losses": torch.tensor(self.losses, dtype=torch.float64)}, facts

    @classmethod
    def from_checkpoint(cls, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> History:
        return cls(
            epoch=facts["epoch"],
            updates=facts["step"],
            losses=tensors["losses"].tolist(),
            epochs=[from_named(record, "molecules") for record in facts["epochs"]],
            sums=EpochSums(**{_NAMES.get(name, name): v for name, v in facts["sums"].items()}),
        )
