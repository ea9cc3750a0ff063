"""What the training loop must know about events."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, final

import torch
from torch import Tensor

from torchkiln.apps.cosmic._data import ShuffledOrder
from torchkiln.apps.cosmic._devices import Batches, TrainingStep
from torchkiln.apps.cosmic._judge import Judge
from torchkiln.apps.cosmic._record import ACCURACY, HELD_OUT, MEAN_IOU, TRAIN, to_figures
from torchkiln.models import SegmentationMetrics
from torchkiln.training._batches import Position
from torchkiln.training._folding import Folding
from torchkiln.training._ranks import Ranks
from torchkiln.training._stopping import Stopping
from torchkiln.training._task import BadLoss, Place, StepOutcome, Validation


@final
class EventBatches:
    """Epochs of a loader whose sampler can begin anywhere.

    Args:
        loader: Reads with `order`.
        order: Of events.
    """

    def __init__(self, loader: Batches, order: ShuffledOrder) -> None:
        self._loader = loader
        self._order = order
        self._position = Position(0, 0)

    @property
    def position(self) -> Position:
        epoch, done = self._position
        return Position(epoch + 1, 0) if done >= self._order.num_batches else self._position

    def num_batches(self, epoch: int) -> int:
        return self._order.num_batches

    def read(self, epoch: int) -> Iterator[Any]:
        first = self._position.done if self._position.epoch == epoch else 0
        self._order.set_position(epoch, first)
        for done, batch in enumerate(self._loader, first + 1):
            self._position = Position(epoch, done)
            yield batch

    def state_dict(self) -> dict[str, Any]:
        return dict(zip(self.position._fields, self.position, strict=True))

    def tensors(self) -> dict[str, Tensor]:
        return {}

    def load_state_dict(self, state: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
        self._position = Position(int(state["epoch"]), int(state["done"]))


class _Told(NamedTuple):
    """What a process tells the others after each update."""

    wants_to_stop: bool
    counts: Tensor
    losses: Tensor


@final
class EventTask:
    """Trains on events, and judges by held-out ones.

    Args:
        step: Trains on the batches of one weight update.
        judge: Judges by held-out events.
        minibatch_size: Events in a mini-batch.
        accumulation: Mini-batches of this process in an update.
        say: Tells the person.
        ranks: The processes that train together.
    """

    def __init__(
        self,
        step: TrainingStep,
        judge: Judge,
        minibatch_size: int,
        accumulation: int,
        say: Callable[[str], None],
        ranks: Ranks,
    ) -> None:
        self._step = step
        self._judge = judge
        self._ranks = ranks
        self.folding = Folding(1, accumulation, ranks.num_copies, 1)
        self._own_images = minibatch_size * accumulation
        self._say = say

    def compile(self, batch: Any | None) -> float | None:
        seconds = None if batch is None else self._step.compile(*batch)
        if seconds is not None:
            self._say(f"compiled in {seconds:.1f} s")
        return seconds

    def step(self, batch: Any, place: Place, is_stopping: Callable[[], bool]) -> StepOutcome:
        own_counts, own_losses = self._step(*batch)
        told = self._ranks.gather(_Told(is_stopping(), own_counts, own_losses))
        # Stages of one network tell the same.
        of_copies = self._ranks.of_copies(told)
        counts = torch.stack([one.counts for one in of_copies]).sum(dim=0)
        losses = self.folding.join(torch.stack([one.losses for one in of_copies])[None])
        metrics = SegmentationMetrics.from_counts(counts)
        loss, images = float(losses.mean()), self._own_images * self._ranks.num_copies
        return StepOutcome(
            losses=losses,
            update_losses=[loss],
            loss_sum=loss * images,
            samples=images,
            own_samples=self._own_images,
            is_stop_wanted=any(one.wants_to_stop for one in told),
            figures={
                ACCURACY: metrics.non_background_accuracy,
                MEAN_IOU: metrics.mean_iou,
            },
            totals={"counts": counts},
        )

    def use_learning_rate(self) -> None:
        self._step.use_learning_rate()

    def explain(self, bad: BadLoss, batch: Any, place: Place) -> str:
        where = f" (rank {bad.rank} has the first that is bad)" if bad.num_ranks > 1 else ""
        return (
            f"the loss is {bad.losses.tolist()} in update {place.updates + 1:,}{where}: lower "
            "mode.optimizer.learning_rate"
        )

    def validate(self, totals: Mapping[str, Tensor], stopping: Stopping) -> Validation:
        train = SegmentationMetrics.from_counts(totals["counts"])
        held_out = self._judge.judge(stopping=stopping).metrics
        figures = dict([*to_figures(train, TRAIN), *to_figures(held_out, HELD_OUT)])
        return Validation(figures=figures)

    def finish(self, stopping: Stopping) -> str | None:
        return None
