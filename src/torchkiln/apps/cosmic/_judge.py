"""What a network says about events, compared with the truth."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple, final

import torch
from torch import Tensor

from torchkiln.apps.cosmic._data import PaddedOrder, Share
from torchkiln.apps.cosmic._devices import Device
from torchkiln.apps.cosmic._tagger import Classes, Tagger
from torchkiln.core._progress import progress_bar
from torchkiln.datasets.cosmic import CosmicImages
from torchkiln.models import SegmentationMetrics, count_pixels
from torchkiln.training._ranks import Ranks
from torchkiln.training._stopping import Check, Stopping

if TYPE_CHECKING:
    from tqdm.std import tqdm


class ShownEvent(NamedTuple):
    """An event to be drawn."""

    number: int
    image: Tensor
    truth: Tensor
    prediction: Tensor


class Judgement(NamedTuple):
    """The metrics of all events, each counted once, and the first ones to look at."""

    metrics: SegmentationMetrics
    shown: list[ShownEvent]


class _Part(NamedTuple):
    """What one process found out."""

    counts: Tensor
    shown: list[ShownEvent]


@final
class Judge:
    """Compares what a network says about events with the truth.

    Args:
        tagger: The network; may be trained in between.
        device: Runs it.
        images: The events.
        minibatch_size: Of a call.
        background_odds: See `Classes`.
        ranks: The processes that share the work; None: there is one.
    """

    def __init__(
        self,
        tagger: Tagger,
        device: Device,
        images: CosmicImages,
        minibatch_size: int,
        background_odds: float = 1.0,
        ranks: Ranks | None = None,
    ) -> None:
        self._tagger = tagger
        self._ranks = ranks or Ranks()
        self._infer = device.make_inference(Classes(tagger, background_odds))
        self._is_ready = False
        share = Share(minibatch_size, self._ranks.rank, self._ranks.size)
        self._order = PaddedOrder(len(images), share)
        self._loader = device.make_loader(images, minibatch_size, self._order, training=False)

    def judge(self, num_shown: int = 0, stopping: Stopping | None = None) -> Judgement:
        """Judge all events.

        Args:
            num_shown: How many of the first events to keep.
            stopping: Divides the work; None: nobody stops it.
        """
        stopping = stopping or Stopping(self._ranks)
        was_training = self._tagger.training
        self._tagger.eval()
        try:
            own = iter(progress(self._loader, "Judging"))
            first = list(itertools.islice(own, 1))
            self._get_ready(first)
            batches = itertools.chain(first, own)
            parts = stopping.share(
                "the judgement", lambda check: self._count(batches, num_shown, check)
            )
        finally:
            self._tagger.train(was_training)
        counts = torch.stack([part.counts for part in parts]).sum(dim=0)
        shown = sorted(
            (event for part in parts for event in part.shown), key=lambda event: event.number
        )
        return Judgement(SegmentationMetrics.from_counts(counts), shown)

    def _get_ready(self, batches: list[Any]) -> None:
        """Let one process of each host compile the network before its others do."""
        if self._ranks.size == 1 or self._is_ready:
            return
        (images, _), *_ = batches
        self._ranks.each_host_once("compile the network", lambda: self._infer(images))
        self._is_ready = True

    def _count(self, batches: Iterable[Any], num_shown: int, check: Check) -> _Part:
        counts, shown = torch.zeros(3, 3, dtype=torch.int64), []
        for number, (images, labels) in enumerate(batches):
            prediction = self._infer(images)
            real = self._order.numbers(number)
            counts += count_pixels(prediction[: len(real)], labels[: len(real)])
            for row, event in enumerate(real):
                if event < num_shown:
                    rows = (images[row], labels[row], prediction[row])
                    shown.append(ShownEvent(event, *(one.clone() for one in rows)))
            check()
        return _Part(counts, shown)


def progress(
    batches: Iterable[Any], name: str, total: int | None = None, initial: int = 0
) -> tqdm[Any]:
    """Return `batches` behind a bar, which is only drawn where somebody looks."""
    return progress_bar(
        batches, desc=name, total=total, initial=initial, leave=False, dynamic_ncols=True
    )
