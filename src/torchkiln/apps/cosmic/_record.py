"""How well a run did, epoch by epoch, in the five metrics of CosmicTagger."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from torchkiln.models import SegmentationMetrics
from torchkiln.report import EpochRecord
from torchkiln.report._record import WorldRecord
from torchkiln.training._history import History

TRAIN, HELD_OUT = "train", "held_out"
ACCURACY, MEAN_IOU = "non_background_accuracy", "mean_iou"


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
    def of(cls, record: EpochRecord, loss: float) -> EpochMetrics:
        """Read the metrics out of the record of an epoch, which had that mean loss."""
        return cls(
            epoch=record.epoch,
            loss=loss,
            seconds=record.seconds,
            images=record.samples,
            learning_rate=record.learning_rate,
            train=_from_figures(record.figures, TRAIN),
            held_out=_from_figures(record.figures, HELD_OUT),
        )


@dataclass(frozen=True, slots=True, eq=False)
class TrainingRecord:
    """What training saw.

    Args:
        losses: Of each update since the beginning.
        accuracies: Non-background accuracy of each, likewise.
        epochs: Those that are done.
        world: What each of several processes did; None if there is one.
    """

    losses: list[float]
    accuracies: list[float]
    epochs: list[EpochMetrics]
    world: WorldRecord | None = None

    @classmethod
    def of(
        cls, history: History, updates_per_epoch: int, world: WorldRecord | None = None
    ) -> TrainingRecord:
        """Read it out of the history of a run."""
        losses = history.losses
        epochs = []
        for record in history.epochs:
            start = record.epoch * updates_per_epoch
            own = losses[start : start + updates_per_epoch]
            epochs.append(EpochMetrics.of(record, sum(own) / len(own)))
        return cls(losses, history.series.get(ACCURACY, []), epochs, world)


def to_figures(metrics: SegmentationMetrics, which: str) -> Iterator[tuple[str, float]]:
    """Yield the metrics by name for the record of an epoch."""
    for name, value in dataclasses.asdict(metrics).items():
        yield f"{which}/{name}", value


def _from_figures(figures: Mapping[str, Any], which: str) -> SegmentationMetrics:
    names = [field.name for field in dataclasses.fields(SegmentationMetrics)]
    return SegmentationMetrics(**{name: figures[f"{which}/{name}"] for name in names})


def describe(metrics: SegmentationMetrics) -> str:
    """Say all five metrics on one line."""
    return (
        f"accuracy {metrics.accuracy:.2%}, non-background {metrics.non_background_accuracy:.2%}, "
        f"IoU cosmic {metrics.cosmic_iou:.3f} neutrino {metrics.neutrino_iou:.3f} "
        f"mean {metrics.mean_iou:.3f}"
    )
