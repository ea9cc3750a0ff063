"""Weights & Biases, if asked for; its offline mode (WANDB_MODE=offline) needs no network."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from torchkiln.core._extras import require_package
from torchkiln.report._epoch_names import named_figures
from torchkiln.report._monitor import QuietMonitor, UpdateCounter
from torchkiln.report._record import EpochRecord, RunResult, StepRecord


class WandbMonitor(QuietMonitor):
    """Log losses and rates of every call, and figures of every epoch, to one wandb run.

    Args:
        project: Name of the wandb project.
        run_name: None lets wandb choose one.
        settings: Nested settings of the run, shown as its config.
        directory: wandb keeps its files in `wandb/` below it.
        counted: What a sample is, in the plural; figures are named after it.

    Raises:
        OptionsError: wandb is not installed. Everything else that can go wrong (no network, no
            key) shows when the run starts, and then costs the log, not the training.
    """

    def __init__(
        self,
        *,
        project: str,
        run_name: str | None,
        settings: dict[str, Any],
        directory: Path,
        counted: str = "samples",
    ) -> None:
        require_package("wandb", wanted_for="use_wandb", extra="wandb", otherwise="switch it off")
        self._project = project
        self._run_name = run_name
        self._settings = settings
        self._directory = directory
        self._counted = counted
        self._run: Any = None
        self._updates = UpdateCounter()

    def start(self, total_epochs: int, first_epoch: int) -> None:
        import wandb

        self._directory.mkdir(parents=True, exist_ok=True)
        online = os.environ.get("WANDB_MODE", "online") == "online"
        try:
            # At a terminal, wandb would stop here to ask for a key, in the middle of a run.
            if online and not wandb.login(prompt=False, verify=False):
                raise ConnectionError(
                    "wandb has no key: run `wandb login`, or set WANDB_MODE=offline to keep the "
                    "log on this machine"
                )
            self._run = wandb.init(
                project=self._project,
                name=self._run_name,
                config=self._settings,
                dir=self._directory,
                # wandb would print a banner, and wrap stdout and stderr, which breaks the bars.
                settings=wandb.Settings(silent=True, console="off"),
            )
        except wandb.errors.Error as error:
            raise ConnectionError(
                f"{error} (WANDB_MODE=offline keeps the log on this machine)"
            ) from error

    def step(self, record: StepRecord) -> None:
        self._updates.count(record)
        rate = record.samples / record.seconds if record.seconds > 0 else 0.0
        values = {"train/loss": record.loss, f"train/{self._counted}_per_s": rate}
        self._log({**values, "epoch": record.epoch})

    def epoch(self, record: EpochRecord) -> None:
        values = {
            f"epoch/{name}": value for name, value in named_figures(record, self._counted).items()
        }
        self._log({**values, "epoch": record.epoch})

    def result(self, result: RunResult) -> None:
        if self._run is None:
            return
        summary = self._run.summary
        summary["status"] = result.status
        summary[f"{self._counted}_per_s"] = result.samples_per_s
        summary["compile_seconds"] = result.compile_seconds
        for name, split in (("validation", result.validation), ("test", result.test)):
            if split is not None:
                summary[f"{name}/mae"] = split.mae
                summary[f"{name}/rmse"] = split.rmse

    def close(self) -> None:
        run, self._run = self._run, None
        if run is not None:
            run.finish()

    def _log(self, values: dict[str, Any]) -> None:
        if self._run is not None:
            self._run.log(values, step=self._updates.number)
