"""Progress as bars, for a terminal: one for the epochs, one for the steps of the running epoch."""

from __future__ import annotations

from typing import Any, TextIO

from tqdm.std import tqdm

from torchkiln.report._lines import describe_epoch
from torchkiln.report._monitor import QuietMonitor
from torchkiln.report._record import EpochRecord, StepRecord
from torchkiln.report._units import format_loss, format_rate

# How much of a running average the newest call is; single losses jump too much to be read.
_SMOOTHING = 0.1
_REDRAW_S = 0.2


class BarsMonitor(QuietMonitor):
    """Two bars on `stream`, and a line that stays for every epoch.

    The bars appear with the first step, so that those of a compiler before it have the screen to
    themselves, and follow the width of the terminal; text that does not fit is cut, never wrapped.
    """

    def __init__(self, stream: TextIO, *, unit: str = "", counted: str = "samples") -> None:
        self._stream = stream
        self._unit = unit
        self._counted = counted
        self._total_epochs, self._first_epoch = 0, 0
        self._epochs: tqdm[Any] | None = None
        self._steps: tqdm[Any] | None = None
        self._loss: float | None = None
        self._samples, self._seconds = 0, 0.0

    def start(self, total_epochs: int, first_epoch: int) -> None:
        self._total_epochs, self._first_epoch = total_epochs, first_epoch

    def step(self, record: StepRecord) -> None:
        if self._epochs is None:
            self._epochs = self._bar(
                total=self._total_epochs,
                initial=self._first_epoch,
                desc="Training",
                unit="epoch",
                position=0,
                bar_format="{desc} {n_fmt}/{total_fmt} epochs |{bar}| {elapsed}<{remaining}",
            )
        if self._steps is None:
            self._steps = self._bar(
                total=record.steps_in_epoch,
                initial=record.step,
                desc=f"Epoch {record.epoch + 1}",
                unit="step",
                position=1,
                postfix=[""],  # tqdm puts a comma before one that is a string
                bar_format="{desc} {n_fmt}/{total_fmt} |{bar}| {postfix[0]}",
            )
        self._samples += record.samples
        self._seconds += record.seconds
        old, loss = self._loss, record.loss
        self._loss = loss if old is None else old + _SMOOTHING * (loss - old)
        rate = self._samples / self._seconds if self._seconds > 0 else 0.0
        self._steps.postfix = [  # type: ignore[assignment]  # the stubs know strings only
            f"loss {format_loss(self._loss)}, {format_rate(rate, self._counted)}"
        ]
        self._steps.update(record.step + 1 - self._steps.n)

    def epoch(self, record: EpochRecord) -> None:
        if self._steps is not None:
            self._steps.close()
            self._steps = None
        self._samples, self._seconds = 0, 0.0
        self.message(describe_epoch(record, self._total_epochs, self._unit, self._counted))
        if self._epochs is not None:
            self._epochs.update(record.epoch + 1 - self._epochs.n)

    def message(self, text: str) -> None:
        tqdm.write(text, file=self._stream)

    def close(self) -> None:
        # The inner one first: closing the outer one moves the others up.
        for bar in (self._steps, self._epochs):
            if bar is not None:
                bar.close()
        self._steps = self._epochs = None

    def _bar(self, **settings: Any) -> tqdm[Any]:
        return tqdm(
            file=self._stream, leave=False, dynamic_ncols=True, mininterval=_REDRAW_S, **settings
        )
