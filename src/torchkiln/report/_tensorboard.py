"""TensorBoard event files, if asked for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torchkiln.core._extras import require_package
from torchkiln.report._epoch_names import named_figures
from torchkiln.report._monitor import QuietMonitor, UpdateCounter
from torchkiln.report._record import EpochRecord, RunResult, StepRecord


class TensorboardMonitor(QuietMonitor):
    """Write the loss of every call and the figures of every epoch to event files.

    Calls are numbered by update, epochs by epoch.

    Raises:
        OptionsError: tensorboard is not installed.
    """

    def __init__(self, directory: Path, *, counted: str = "samples") -> None:
        require_package(
            "tensorboard",
            wanted_for="use_tensorboard",
            extra="tensorboard",
            otherwise="switch it off",
        )
        self._directory = directory
        self._counted = counted
        self._writer: Any = None
        self._updates = UpdateCounter()

    def start(self, total_epochs: int, first_epoch: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(self._directory))

    def step(self, record: StepRecord) -> None:
        update = self._updates.count(record)
        self._scalar("train/loss", record.loss, update)
        if record.seconds > 0:
            self._scalar(f"train/{self._counted}_per_s", record.samples / record.seconds, update)

    def epoch(self, record: EpochRecord) -> None:
        for name, value in named_figures(record, self._counted).items():
            self._scalar(f"epoch/{name}", value, record.epoch)

    def result(self, result: RunResult) -> None:
        for name, split in (("validation", result.validation), ("test", result.test)):
            if split is not None:
                self._scalar(f"final/{name}_mae", split.mae, len(result.epochs))

    def close(self) -> None:
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.close()

    def _scalar(self, name: str, value: float, number: int) -> None:
        if self._writer is not None:
            self._writer.add_scalar(name, value, number)
