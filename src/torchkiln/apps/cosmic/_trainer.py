"""Training: epochs of updates, judged by held-out events, saved, stopped when asked to."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterable
from typing import Any, final

import torch
from torch import Tensor
from tqdm.std import tqdm

from torchkiln.apps.cosmic._data import PaddedOrder, ShuffledOrder
from torchkiln.apps.cosmic._devices import Device
from torchkiln.apps.cosmic._history import History
from torchkiln.apps.cosmic._saving import RunSaver
from torchkiln.apps.cosmic._schedule import learning_rate_at
from torchkiln.apps.cosmic._settings import Settings
from torchkiln.apps.cosmic._tagger import Classes, Tagger, TaggerWithLoss
from torchkiln.core import NonFiniteError
from torchkiln.datasets.cosmic import CosmicImages
from torchkiln.models import SegmentationMetrics, count_pixels
from torchkiln.training._interrupt import InterruptGuard

# Where no bar is drawn, in a log, a line now and then shows that a run is alive.
_LINE_EVERY_S = 60.0


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


def train(
    settings: Settings,
    tagger: Tagger,
    device: Device,
    images: CosmicImages,
    judge: Judge,
    say: Callable[[str], None],
) -> History:
    """Train `tagger` until the epochs are done, or the person stops it.

    The first Ctrl-C (or SIGTERM) ends the run after the present update, and saves it.

    Raises:
        Interrupted: The person stopped it.
        NonFiniteError: The loss is NaN or infinite.
        CheckpointError: There is a checkpoint but resuming was not asked for, or the other way
            round; or it was made with other settings.
    """
    saver = RunSaver(settings) if settings.mode.checkpoint_epochs else None
    with contextlib.ExitStack() as stack:
        if saver is not None:
            saver.check()
            stack.enter_context(saver.claim())
        return _Run(settings, tagger, device, images, judge, saver, say).run()


@final
class _Run:
    """One run from start to end; its methods are in the order in which they are called."""

    def __init__(
        self,
        settings: Settings,
        tagger: Tagger,
        device: Device,
        images: CosmicImages,
        judge: Judge,
        saver: RunSaver | None,
        say: Callable[[str], None],
    ) -> None:
        optimizer, size = settings.mode.optimizer, settings.run.minibatch_size
        self._settings = settings
        self._tagger = tagger
        self._judge = judge
        self._saver = saver
        self._say = say
        self._guard = InterruptGuard()
        self._images_per_update = size * optimizer.gradient_accumulation
        self._order = ShuffledOrder(len(images), self._images_per_update, settings.run.seed)
        self._loader = device.make_loader(images, size, self._order, training=True)
        self._num_updates = settings.run.epochs * self._order.num_batches
        module = TaggerWithLoss(tagger, optimizer.loss_balance_scheme).train()
        self._optimizer = device.make_optimizer(
            optimizer.name, module.parameters(), optimizer.learning_rate
        )
        self._step = device.make_training(module, self._optimizer)
        self._history = History()
        self._is_compiled = False
        self._last_line = time.perf_counter()

    def run(self) -> History:
        history = self._history
        if self._saver is not None and self._settings.mode.resume:
            history = self._history = self._saver.restore(self._tagger, self._optimizer)
            self._say(f"continuing after {history.updates:,} of {self._num_updates:,} updates")
        with self._guard:
            try:
                while history.epoch < self._settings.run.epochs:
                    self._train_epoch()
                    self._finish_epoch()
            except BaseException:
                if self._guard.requested:
                    self._leave()
                raise
        return history

    def _train_epoch(self) -> None:
        history = self._history
        self._tagger.train()
        self._order.set_position(history.epoch, history.done)
        name = f"Epoch {history.epoch + 1}/{self._settings.run.epochs}"
        bar = progress(self._loader, name, self._order.num_batches, history.done)
        clock = time.perf_counter()
        for images, labels in bar:
            if not self._is_compiled:
                self._compile(images, labels)
                clock = time.perf_counter()
            self._set_learning_rate()
            counts, losses = self._step(images, labels)
            self._require_finite(losses)
            seconds, clock = time.perf_counter() - clock, time.perf_counter()
            metrics = history.take(counts, losses, seconds)
            told = f"loss {history.losses[-1]:.4f}, mean IoU {metrics.mean_iou:.3f}"
            bar.set_postfix_str(told, refresh=False)
            if bar.disable and clock - self._last_line > _LINE_EVERY_S:
                self._say(f"update {history.updates:,} of {self._num_updates:,}: {told}")
                self._last_line = clock
            self._guard.check()

    def _compile(self, images: Tensor, labels: Tensor) -> None:
        """Warm up, so that no update waits for a compiler."""
        seconds = self._step.compile(images, labels)
        if seconds is not None:
            self._say(f"compiled in {seconds:.1f} s")
        self._is_compiled = True

    def _set_learning_rate(self) -> None:
        optimizer = self._settings.mode.optimizer
        rate = learning_rate_at(
            self._history.updates, self._num_updates, optimizer.learning_rate, optimizer.warmup
        )
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        self._step.use_learning_rate()

    def _require_finite(self, losses: Tensor) -> None:
        if not torch.isfinite(losses).all():
            kept = ""
            if self._saver is not None:
                kept = f"; the last good checkpoint is kept in {self._saver.directory}"
            raise NonFiniteError(
                f"the loss is {losses.tolist()} in update {self._history.updates + 1:,}: lower "
                f"mode.optimizer.learning_rate{kept}"
            )

    def _finish_epoch(self) -> None:
        """Judge, tell, save."""
        history, mode = self._history, self._settings.mode
        held_out = self._judge.judge(check=self._guard.check)
        record = history.finish_epoch(
            history.done * self._images_per_update,
            float(self._optimizer.param_groups[0]["lr"]),
            held_out,
        )
        self._say(str(record))
        is_last = history.epoch == self._settings.run.epochs
        if self._saver is not None and (is_last or history.epoch % mode.checkpoint_epochs == 0):
            self._saver.save(self._tagger, self._optimizer, history)

    def _leave(self) -> None:
        """Save an interrupted run, and tell how to go on."""
        where = f"interrupted after {self._history.updates:,} of {self._num_updates:,} updates"
        if self._saver is None:
            self._say(f"{where}; nothing is saved (mode.checkpoint_epochs is 0)")
            return
        self._saver.save(self._tagger, self._optimizer, self._history)
        self._say(f"{where} and saved; go on with mode.resume=true run.id={self._settings.run.id}")


def progress(
    batches: Iterable[Any], name: str, total: int | None = None, initial: int = 0
) -> tqdm[Any]:
    """Return `batches` behind a bar, which is only drawn where somebody looks."""
    return tqdm(
        batches,
        desc=name,
        total=total,
        initial=initial,
        leave=False,
        dynamic_ncols=True,
        disable=not sys.stderr.isatty(),
        file=sys.stderr,
    )
