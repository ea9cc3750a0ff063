"""What a network says about events, compared with the truth."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, final

import torch
from torch import Tensor

from torchkiln.apps.cosmic._data import PaddedOrder
from torchkiln.apps.cosmic._devices import Device
from torchkiln.apps.cosmic._tagger import Classes, Tagger
from torchkiln.core._progress import progress_bar
from torchkiln.datasets.cosmic import CosmicImages
from torchkiln.models import SegmentationMetrics, count_pixels

if TYPE_CHECKING:
    from tqdm.std import tqdm


@final
class Judge:
    """Compares what a network says about events with the truth.

    Args:
        tagger: The network; may be trained in between.
        device: Runs it.
        images: The events.
        minibatch_size: Of a call.
        background_odds: See `Classes`.
    """

    def __init__(
        self,
        tagger: Tagger,
        device: Device,
        images: CosmicImages,
        minibatch_size: int,
        background_odds: float = 1.0,
    ) -> None:
        self._tagger = tagger
        self._infer = device.make_inference(Classes(tagger, background_odds))
        self._num_events = len(images)
        order = PaddedOrder(len(images), minibatch_size)
        self._loader = device.make_loader(images, minibatch_size, order, training=False)

    def judge(
        self,
        look: Callable[[int, Tensor, Tensor, Tensor], None] | None = None,
        check: Callable[[], None] | None = None,
    ) -> SegmentationMetrics:
        """Return the metrics of all events, each counted once.

        Args:
            look: Shown number, image, truth and prediction of every event.
            check: Called between batches; may raise.
        """
        was_training = self._tagger.training
        self._tagger.eval()
        counts, number = torch.zeros(3, 3, dtype=torch.int64), 0
        try:
            for images, labels in progress(self._loader, "Judging"):
                prediction = self._infer(images)
                real = min(len(images), self._num_events - number)
                counts += count_pixels(prediction[:real], labels[:real])
                for row in range(real if look is not None else 0):
                    look(number + row, images[row], labels[row], prediction[row])  # type: ignore[misc]
                number += real
                if check is not None:
                    check()
        finally:
            self._tagger.train(was_training)
        return SegmentationMetrics.from_counts(counts)


def progress(
    batches: Iterable[Any], name: str, total: int | None = None, initial: int = 0
) -> tqdm[Any]:
    """Return `batches` behind a bar, which is only drawn where somebody looks."""
    return progress_bar(
        batches, desc=name, total=total, initial=initial, leave=False, dynamic_ncols=True
    )
