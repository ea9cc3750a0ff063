"""TensorBoard event files, if asked for."""

from __future__ import annotations

import dataclasses
import importlib.util
from pathlib import Path
from typing import Any

from torchkiln.core import OptionsError
from torchkiln.report._monitor import QuietMonitor, UpdateCounter
from torchkiln.report._record import EpochRecord, RunResult


class TensorboardMonitor(QuietMonitor):
    """Write the loss of every call and the figures of every epoch to event files.

    Calls are numbered by update, epochs by epoch.

    Raises:
        OptionsError: tensorboard is not installed.
    """

    def __init__(self, directory: Path) -> None:
        if importlib.util.find_spec("tensorboard") is None:
            raise OptionsError(
                "a TensorBoard log was asked for but tensorboard is not installed; "
                "run `pip install torchkiln[tensorboard]` or leave it out"
            )
        self._directory = directory
        self._writer: Any = None
        self._updates = UpdateCounter()

    def start(self, total_epochs: int, first_epoch: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(self._directory))

    def step(
        self,
        epoch: int,
        step: int,
        steps_in_epoch: int,
        loss: float,
        molecules: int,
        seconds: float,
    ) -> None:
        update = self._updates.count(epoch, step, steps_in_epoch)
        self._scalar("train/loss", loss, update)
        if seconds > 0:
            self._scalar("train/molecules_per_s", molecules / seconds, update)

    def epoch(self, record: EpochRecord) -> None:
        for name, value in dataclasses.asdict(record).items():
            if name != "epoch" and value is not None:
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
