"""`make_monitor`: everybody who was asked to watch a run, joined into one monitor."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, Literal, TextIO

from torchkiln.core._progress import is_terminal
from torchkiln.report._lines import LinesMonitor
from torchkiln.report._monitor import MonitorGroup, RunMonitor
from torchkiln.report._progress import BarsMonitor
from torchkiln.report._results_file import to_plain

Progress = Literal["auto", "bars", "lines", "none"]


def make_monitor(
    directory: Path,
    *,
    unit: str = "",
    counted: str = "samples",
    progress: Progress = "auto",
    stream: TextIO | None = None,
    use_wandb: bool = False,
    use_tensorboard: bool = False,
    project: str = "torchkiln",
    run_name: str | None = None,
    settings: dict[str, Any] | None = None,
) -> MonitorGroup:
    """Return one monitor for the terminal and the logging services that were asked for.

    Args:
        directory: Where logging services keep their files (`wandb/`, `tensorboard/`).
        unit: Of the target, for errors that are shown.
        counted: What a sample is, in the plural: "molecules", "images".
        progress: "auto" draws bars on a terminal and writes lines to anything else.
        stream: Where progress goes; standard error by default, as results go to standard output.
        use_wandb: Log to Weights & Biases.
        use_tensorboard: Write event files.
        project: wandb's project.
        run_name: Name of the run there, and of the folder of event files.
        settings: What was asked for, for wandb's table of runs.

    Raises:
        OptionsError: a logging service is not installed.
    """
    stream = sys.stderr if stream is None else stream
    if progress == "auto":
        progress = "bars" if is_terminal(stream) else "lines"
    monitors: list[RunMonitor] = []
    if progress == "bars":
        monitors.append(BarsMonitor(stream, unit=unit, counted=counted))
    elif progress == "lines":
        monitors.append(LinesMonitor(stream, unit=unit, counted=counted))
    if use_wandb:
        from torchkiln.report._wandb import WandbMonitor

        monitors.append(
            WandbMonitor(
                project=project,
                run_name=run_name,
                settings=to_plain(settings or {}),
                directory=directory,
                counted=counted,
            )
        )
    if use_tensorboard:
        from torchkiln.report._tensorboard import TensorboardMonitor

        events = directory / "tensorboard"
        monitors.append(
            TensorboardMonitor(events / run_name if run_name else events, counted=counted)
        )
    return MonitorGroup(monitors)
