"""Progress as plain lines, for output that is not a terminal (nohup, CI, a pipe)."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TextIO

from torchkiln.report._monitor import QuietMonitor
from torchkiln.report._record import EpochRecord
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
        self, stream: TextIO, *, unit: str = "", clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._stream = stream
        self._unit = unit
        self._clock = clock
        self._total_epochs = 0
        self._last_s: float | None = None
        self._molecules, self._seconds = 0, 0.0

    def start(self, total_epochs: int, first_epoch: int) -> None:
        self._total_epochs = total_epochs
        self._last_s = None

    def step(
        self,
        epoch: int,
        step: int,
        steps_in_epoch: int,
        loss: float,
        molecules: int,
        seconds: float,
    ) -> None:
        self._molecules += molecules
        self._seconds += seconds
        now = self._clock()
        if self._last_s is not None and now - self._last_s < _INTERVAL_S:
            return
        self._last_s = now
        rate = self._molecules / self._seconds if self._seconds > 0 else 0.0
        self._molecules, self._seconds = 0, 0.0
        self.message(
            f"epoch {epoch + 1}/{self._total_epochs}  step {step + 1}/{steps_in_epoch}  "
            f"loss {format_loss(loss)}  {format_rate(rate)}"
        )

    def epoch(self, record: EpochRecord) -> None:
        self.message(describe_epoch(record, self._total_epochs, self._unit))
        # The next epoch's first step says nothing new: its line comes after ten seconds.
        self._last_s = self._clock()
        self._molecules, self._seconds = 0, 0.0

    def message(self, text: str) -> None:
        # Flushed, as the reader of a log follows it while the run goes on.
        self._stream.write(text + "\n")
        self._stream.flush()


def describe_epoch(record: EpochRecord, total_epochs: int, unit: str) -> str:
    """Return an epoch as one line, columns aligned with those of other epochs."""
    width = len(str(total_epochs))
    parts = [f"epoch {record.epoch + 1:{width}d}/{total_epochs}", f"loss {record.loss:<9.4g}"]
    if record.validation_mae is not None:
        parts.append(f"validation MAE {format_short_error(record.validation_mae, unit):<10s}")
    parts.append(format_rate(record.molecules_per_s))
    parts.append(format_seconds(record.seconds))
    return "  ".join(parts)
