"""How good a segmentation is, from counts of pixels that can be added up over batches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

# Of labels and predictions, in the files of CosmicTagger too.
BACKGROUND, COSMIC, NEUTRINO = range(3)
_NUM_CLASSES = 3


def count_pixels(prediction: Tensor, labels: Tensor) -> Tensor:
    """Return how many pixels of each class were given each class, int64 [3 true, 3 predicted].

    Counts of batches can be added, which ratios cannot. Traceable: shapes do not depend on values.

    Args:
        prediction: Classes, integers of any shape.
        labels: True classes, of the same shape.
    """
    hits = [prediction == kind for kind in range(_NUM_CLASSES)]
    rows = []
    for kind in range(_NUM_CLASSES):
        truth = labels == kind
        rows.append(torch.stack([(truth & hit).sum() for hit in hits]))
    return torch.stack(rows)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentationMetrics:
    """Five numbers between 0 and 1 about predicted classes of pixels.

    Attributes:
        accuracy: Share of pixels with the right class; empty pixels make it flatter everything.
        non_background_accuracy: The same among pixels that are truly cosmic or neutrino.
        cosmic_iou: Pixels that both truth and prediction call cosmic, among those that one of them
            does (intersection over union).
        neutrino_iou: The same for neutrino.
        mean_iou: The mean of the two.
    """

    accuracy: float
    non_background_accuracy: float
    cosmic_iou: float
    neutrino_iou: float
    mean_iou: float

    @classmethod
    def from_counts(cls, counts: Tensor) -> SegmentationMetrics:
        """Return the metrics of all pixels behind `counts`, [3 true, 3 predicted].

        Where there is nothing to find and nothing was found, nothing is wrong: the metric is 1.
        """
        table = counts.to(torch.float64).tolist()
        true = [sum(row) for row in table]
        predicted = [sum(row[kind] for row in table) for kind in range(_NUM_CLASSES)]
        right = [table[kind][kind] for kind in range(_NUM_CLASSES)]

        def iou(kind: int) -> float:
            return _share(right[kind], true[kind] + predicted[kind] - right[kind])

        cosmic, neutrino = iou(COSMIC), iou(NEUTRINO)
        return cls(
            accuracy=_share(sum(right), sum(true)),
            non_background_accuracy=_share(
                right[COSMIC] + right[NEUTRINO], true[COSMIC] + true[NEUTRINO]
            ),
            cosmic_iou=cosmic,
            neutrino_iou=neutrino,
            mean_iou=(cosmic + neutrino) / 2,
        )


def _share(part: float, whole: float) -> float:
    return part / whole if whole else 1.0
