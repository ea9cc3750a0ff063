"""The progress of a training on events: a bar on a terminal, lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, final

from torchkiln.apps.cosmic._judge import progress
from torchkiln.apps.cosmic._record import MEAN_IOU, EpochMetrics
from torchkiln.report import EpochRecord, QuietMonitor, StepRecord

if TYPE_CHECKING:
    from tqdm.std import tqdm

# Where no bar is drawn, in a log, a line now and then shows that a run is alive.
_LINE_EVERY_S = 60.0


@final
class EventMonitor(QuietMonitor):
    """A bar for each epoch, with loss and mean IoU, and a line when it is done.

    Args:
        say: Tells the person.
    """

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._num_epochs = 0
        self._bar: tqdm[Any] | None = None
        self._last_line = time.perf_counter()

    def start(self, total_epochs: int, first_epoch: int) -> None:
        self._num_epochs = total_epochs

    def step(self, record: StepRecord) -> None:
        if self._bar is None:
            name = f"Epoch {record.epoch + 1}/{self._num_epochs}"
            self._bar = progress([], name, record.steps_in_epoch, record.step)
        told = f"loss {record.loss:.4f}, mean IoU {record.figures[MEAN_IOU]:.3f}"
        self._bar.set_postfix_str(told, refresh=False)
        self._bar.update()
        now = time.perf_counter()
        if self._bar.disable and now - self._last_line > _LINE_EVERY_S:
            update = record.epoch * record.steps_in_epoch + record.step + 1
            total = self._num_epochs * record.steps_in_epoch
            self._say(f"update {update:,} of {total:,}: {told}")
            self._last_line = now

    def epoch(self, record: EpochRecord) -> None:
        self.close()
        self._say(str(EpochMetrics.of(record, record.loss)))

    def message(self, text: str) -> None:
        self._say(text)

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()
            self._bar = None
