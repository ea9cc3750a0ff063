"""`RunMonitor`: what a training loop tells while it runs; and the group that joins several."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from torchkiln.core import warn_user
from torchkiln.report._record import EpochRecord, RunResult, StepRecord


class RunMonitor(Protocol):
    """Somebody who watches a run.

    Epochs and steps count from 0. A run that continues an older one starts at another epoch, and
    perhaps in the middle of it.
    """

    def start(self, total_epochs: int, first_epoch: int) -> None:
        """Training is about to begin and will end before epoch `total_epochs`."""

    def step(self, record: StepRecord) -> None:
        """Take note of one call of the training step."""

    def epoch(self, record: EpochRecord) -> None:
        """Take note of an epoch that is done and, if asked for, validated."""

    def message(self, text: str) -> None:
        """Show a line to the person, without disturbing the bars."""

    def result(self, result: RunResult) -> None:
        """Take note of the final figures; not called when a run ends with an error."""

    def close(self) -> None:
        """Leave a clean terminal and complete files; calling it again does nothing."""


class QuietMonitor:
    """A monitor that ignores everything; others override what they care about."""

    def start(self, total_epochs: int, first_epoch: int) -> None:
        pass

    def step(self, record: StepRecord) -> None:
        pass

    def epoch(self, record: EpochRecord) -> None:
        pass

    def message(self, text: str) -> None:
        pass

    def result(self, result: RunResult) -> None:
        pass

    def close(self) -> None:
        pass


class UpdateCounter:
    """Number of the running call, counted from the start of the training.

    Epochs may differ in steps, so only the first number is computed: a run that goes on after
    epochs of other lengths starts near its true number, and counts exactly from there.
    """

    def __init__(self) -> None:
        self.number: int | None = None

    def count(self, record: StepRecord) -> int:
        """Return the number of this call; to be called for each once."""
        if self.number is None:
            self.number = record.epoch * record.steps_in_epoch + record.step
        else:
            self.number += 1
        return self.number


class MonitorGroup:
    """Several monitors as one, none of which can end the training.

    A monitor that raises (disk full, no network) is closed and dropped with one warning.
    """

    def __init__(self, monitors: list[RunMonitor]) -> None:
        self._monitors = list(monitors)

    @property
    def monitors(self) -> tuple[RunMonitor, ...]:
        """Those that are still watching."""
        return tuple(self._monitors)

    def start(self, total_epochs: int, first_epoch: int) -> None:
        self._tell(lambda monitor: monitor.start(total_epochs, first_epoch))

    def step(self, record: StepRecord) -> None:
        self._tell(lambda monitor: monitor.step(record))

    def epoch(self, record: EpochRecord) -> None:
        self._tell(lambda monitor: monitor.epoch(record))

    def message(self, text: str) -> None:
        self._tell(lambda monitor: monitor.message(text))

    def result(self, result: RunResult) -> None:
        self._tell(lambda monitor: monitor.result(result))

    def close(self) -> None:
        self._tell(lambda monitor: monitor.close())
        self._monitors.clear()

    def _tell(self, what: Callable[[RunMonitor], None]) -> None:
        for monitor in self.monitors:
            try:
                what(monitor)
            except Exception as error:
                self._drop(monitor, error)

    def _drop(self, monitor: RunMonitor, error: Exception) -> None:
        self._monitors.remove(monitor)
        try:
            monitor.close()
        except Exception as second:
            error.add_note(f"closing it failed too: {second}")
        warn_user(
            f"{type(monitor).__name__} failed and is switched off, training goes on: "
            f"{type(error).__name__}: {error}"
        )
