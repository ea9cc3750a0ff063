"""Progress as plain lines, for output that is not a terminal (nohup, CI, a pipe)."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TextIO

from torchkiln.report._monitor import QuietMonitor
from torchkiln.report._record import EpochRecord, StepRecord
from torchkiln.report._units import (
    format_loss,
    format_rate,
    format_seconds,
    format_short_error,
)

_INTERVAL_S = 10.0


class LinesMonitor(QuietMonitor):
    """One line for the first step, every ten seconds, and at the end of each epoch."""

    def __init__(
        self,
        stream: TextIO,
        *,
        unit: str = "",
        counted: str = "samples",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._stream = stream
        self._unit = unit
        self._counted = counted
        self._clock = clock
        self._total_epochs = 0
        self._last_s: float | None = None
        self._samples, self._seconds = 0, 0.0

    def start(self, total_epochs: int, first_epoch: int) -> None:
        self._total_epochs = total_epochs
        self._last_s = None

    def step(self, record: StepRecord) -> None:
        self._samples += record.samples
        self._seconds += record.seconds
        now = self._clock()
        if self._last_s is not None and now - self._last_s < _INTERVAL_S:
            return
        self._last_s = now
        rate = self._samples / self._seconds if self._seconds > 0 else 0.0
        self._samples, self._seconds = 0, 0.0
        self.message(
            f"epoch {record.epoch + 1}/{self._total_epochs}  "
            f"step {record.step + 1}/{record.steps_in_epoch}  "
            f"loss {format_loss(record.loss)}  {format_rate(rate, self._counted)}"
        )

    def epoch(self, record: EpochRecord) -> None:
        self.message(describe_epoch(record, self._total_epochs, self._unit, self._counted))
        # The next epoch's first step says nothing new: its line comes after ten seconds.
        self._last_s = self._clock()
        self._samples, self._seconds = 0, 0.0

    def message(self, text: str) -> None:
        # Flushed, as the reader of a log follows it while the run goes on.
        self._stream.write(text + "\n")
        self._stream.flush()


def describe_epoch(record: EpochRecord, total_epochs: int, unit: str, counted: str) -> str:
    """Return an epoch as one line, columns aligned with those of other epochs."""
    width = len(str(total_epochs))
    parts = [f"epoch {record.epoch + 1:{width}d}/{total_epochs}", f"loss {record.loss:<9.4g}"]
    if record.validation_mae is not None:
        parts.append(f"validation MAE {format_short_error(record.validation_mae, unit):<10s}")
    elif record.validation_loss is not None:
        parts.append(f"validation loss {record.validation_loss:<9.4g}")
    parts.append(format_rate(record.samples_per_s, counted))
    parts.append(format_seconds(record.seconds))
    return "  ".join(parts)
