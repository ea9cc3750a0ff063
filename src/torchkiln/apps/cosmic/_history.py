"""How far a run has come, and how well it did: by update and by epoch."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from torchkiln.models import SegmentationMetrics


@dataclass(frozen=True, slots=True)
class EpochMetrics:
    """One pass over the training events.

    Args:
        epoch: Its number, from 0.
        loss: Mean of all mini-batches.
        seconds: Spent on training.
        images: Events that were trained on.
        learning_rate: Of the last update.
        train: Metrics of these events while they were trained on.
        held_out: Metrics of the held-out events afterwards.
    """

    epoch: int
    loss: float
    seconds: float
    images: int
    learning_rate: float
    train: SegmentationMetrics
    held_out: SegmentationMetrics

    def __str__(self) -> str:
        rate = self.images / self.seconds if self.seconds else 0.0
        return (
            f"epoch {self.epoch + 1}: loss {self.loss:.4f}, {rate:.1f} images/s, held out: "
            f"{describe(self.held_out)}"
        )

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> EpochMetrics:
        """Take what `dataclasses.asdict` gave."""
        metrics = {name: SegmentationMetrics(**record[name]) for name in ("train", "held_out")}
        return cls(**{**record, **metrics})


@dataclass(slots=True)
class History:
    """What a resumed run takes over besides weights and optimiser.

    Args:
        epoch: The epoch that is being worked on.
        done: Its updates so far.
        losses: Of each update since the beginning.
        accuracies: Non-background accuracy of each, likewise.
        counts: Pixels of the present epoch, [3 true, 3 predicted].
        seconds: Spent on training in the present epoch.
        epochs: Those that are done.
    """

    epoch: int = 0
    done: int = 0
    losses: list[float] = field(default_factory=list)
    accuracies: list[float] = field(default_factory=list)
    counts: Tensor = field(default_factory=lambda: torch.zeros(3, 3, dtype=torch.int64))
    seconds: float = 0.0
    epochs: list[EpochMetrics] = field(default_factory=list)

    @property
    def updates(self) -> int:
        return len(self.losses)

    def take(self, counts: Tensor, losses: Tensor, seconds: float) -> SegmentationMetrics:
        """Add one update; return its metrics."""
        metrics = SegmentationMetrics.from_counts(counts)
        self.losses.append(float(losses.mean()))
        self.accuracies.append(metrics.non_background_accuracy)
        self.counts += counts
        self.seconds += seconds
        self.done += 1
        return metrics

    def finish_epoch(
        self, images: int, learning_rate: float, held_out: SegmentationMetrics
    ) -> EpochMetrics:
        """Go on to the next epoch; return the one that is done."""
        record = EpochMetrics(
            epoch=self.epoch,
            loss=sum(self.losses[-self.done :]) / self.done,
            seconds=self.seconds,
            images=images,
            learning_rate=learning_rate,
            train=SegmentationMetrics.from_counts(self.counts),
            held_out=held_out,
        )
        self.epochs.append(record)
        self.epoch += 1
        self.done, self.seconds = 0, 0.0
        self.counts = torch.zeros_like(self.counts)
        return record

    def to_checkpoint(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return tensors and facts; numbers of every update are too much for JSON."""
        tensors = {
            "losses": torch.tensor(self.losses, dtype=torch.float64),
            "accuracies": torch.tensor(self.accuracies, dtype=torch.float64),
            "counts": self.counts,
        }
        facts = {
            "epoch": self.epoch,
            "done": self.done,
            "seconds": self.seconds,
            "epochs": [dataclasses.asdict(record) for record in self.epochs],
        }
        return tensors, facts

    @classmethod
    def from_checkpoint(cls, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> History:
        return cls(
            epoch=facts["epoch"],
            done=facts["done"],
            losses=tensors["losses"].tolist(),
            accuracies=tensors["accuracies"].tolist(),
            counts=tensors["counts"],
            seconds=facts["seconds"],
            epochs=[EpochMetrics.from_record(record) for record in facts["epochs"]],
        )


def describe(metrics: SegmentationMetrics) -> str:
    """Say all five metrics on one line."""
    return (
        f"accuracy {metrics.accuracy:.2%}, non-background {metrics.non_background_accuracy:.2%}, "
        f"IoU cosmic {metrics.cosmic_iou:.3f} neutrino {metrics.neutrino_iou:.3f} "
        f"mean {metrics.mean_iou:.3f}"
    )
