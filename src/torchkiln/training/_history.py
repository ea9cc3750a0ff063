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
from torchkiln.training._task import StepOutcome, Validation

_SERIES, _TOTALS = "series/", "totals/"


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
        series: Further figures of every call since the beginning, by name.
        totals: Further sums of the present epoch, by name.
    """

    epoch: int = 0
    updates: int = 0
    losses: list[float] = field(default_factory=list)
    epochs: list[EpochRecord] = field(default_factory=list)
    sums: EpochSums = field(default_factory=EpochSums)
    series: dict[str, list[float]] = field(default_factory=dict)
    totals: dict[str, Tensor] = field(default_factory=dict)

    def take(self, outcome: StepOutcome, seconds: float) -> None:
        """Add one call, which took so long."""
        self.losses += outcome.update_losses
        self.updates += len(outcome.update_losses)
        self.sums.steps += 1
        self.sums.loss_sum += outcome.loss_sum
        self.sums.samples += outcome.samples
        self.sums.seconds += seconds
        for name, value in outcome.figures.items():
            self.series.setdefault(name, []).append(value)
        for name, tensor in outcome.totals.items():
            before = self.totals.get(name)
            self.totals[name] = tensor.clone() if before is None else before + tensor

    def finish_epoch(self, record: EpochRecord) -> None:
        """Go on to the next epoch."""
        self.epochs.append(record)
        self.epoch += 1
        self.sums = EpochSums()
        self.totals = {}

    def record(self, learning_rate: float, validation: Validation | None = None) -> EpochRecord:
        """Return the present epoch as it would be reported."""
        sums, validation = self.sums, validation or Validation()
        return EpochRecord(
            epoch=self.epoch,
            loss=sums.loss,
            seconds=sums.seconds,
            samples=sums.samples,
            samples_per_s=sums.samples / sums.seconds if sums.seconds else 0.0,
            learning_rate=learning_rate,
            validation_mae=validation.mae,
            validation_loss=validation.loss,
            figures=dict(validation.figures),
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
        tensors = {"losses": torch.tensor(self.losses, dtype=torch.float64)}
        for name, values in self.series.items():
            tensors[_SERIES + name] = torch.tensor(values, dtype=torch.float64)
        for name, total in self.totals.items():
            tensors[_TOTALS + name] = total
        return tensors, facts

    @classmethod
    def from_checkpoint(cls, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> History:
        return cls(
            epoch=facts["epoch"],
            updates=facts["step"],
            losses=tensors["losses"].tolist(),
            epochs=[from_named(record, "samples") for record in facts["epochs"]],
            sums=EpochSums(**facts["sums"]),
            series={name: t.tolist() for name, t in below(_SERIES, tensors).items()},
            totals=below(_TOTALS, tensors),
        )


def below(start: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors whose names begin with `start`, without it."""
    return {name[len(start) :]: t for name, t in tensors.items() if name.startswith(start)}
