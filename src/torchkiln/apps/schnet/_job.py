"""`TrainingJob`: everything that a training run needs, as one value."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

from torchkiln.apps.schnet._settings import Settings
from torchkiln.core import Options, OptionsError
from torchkiln.datasets import MoleculeSet
from torchkiln.graphs import FixedSizeLoader
from torchkiln.training._checkpoint_plan import CheckpointPlan, Words
from torchkiln.training._schedule import check_interval, check_scheduler

WORDS = Words(
    go_on="--resume true",
    begin="--resume false",
    name="--model_name",
    save="--checkpoint true saves a run",
    every_epochs="checkpoint_epochs",
    names_models=True,
    counted="molecules",
)


def make_checkpoint_plan(
    *,
    root: Path,
    model_name: str,
    every_epochs: int = 1,
    resume: bool = False,
    command: str = "python bench.py",
    doubtful: tuple[str, ...] = (),
) -> CheckpointPlan:
    """Return where and how often a run is saved, in the words of the benchmark.

    Args:
        root: Directory of all checkpoints; each model has a directory of its own below it.
        model_name: Name of this one.
        every_epochs: Save after so many epochs; the last one and an interrupt are always saved.
        resume: Continue the checkpoint of that name instead of beginning one.
        command: How the program is called, for hints that can be pasted.
        doubtful: Flags that may be why the checkpoint turns out to be of another run.

    Raises:
        OptionsError: The name is none, or `every_epochs` is below 1.
    """
    return CheckpointPlan(
        root=root,
        model_name=model_name,
        every_epochs=every_epochs,
        resume=resume,
        doubtful=doubtful,
        words=dataclasses.replace(WORDS, go_on_here=_go_on(command, root, model_name)),
    )


def _go_on(command: str, root: Path, model_name: str) -> str:
    """Return the whole command that continues a run; all else is in its checkpoint."""
    flags = ["--resume", "true", "--model_name", model_name]
    if root != Settings.checkpoint_dir:
        flags += ["--checkpoint_dir", str(root)]
    return f"{command} {shlex.join(flags)}"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TrainingJob:
    """What to train, on what, for how long, and what to keep.

    `train` changes `regression`, `optimizer`, `scheduler` and the position of the loaders, nothing
    else.

    Args:
        regression: `MoleculeRegression`; its attribute `model` is the network that checkpoints
            keep. Called with `z, edge_index, edge_weight, edge_ways, batch, y, graph_mask`, returns
            (prediction, loss).
        optimizer: Over the parameters of `regression`.
        dataset: What the loaders read views of; knows splits, target and its transform.
        train_loader: Over the training split, made with `options`, shuffled.
        validation_loader: Over the validation split, made with options for inference (no
            accumulation), which are used for the program too; None skips validation.
        test_loader: Likewise; evaluated once, when all epochs are done.
        options: Of the training program. The output mode does not matter: all losses are asked for.
        num_epochs: In total, those of a resumed checkpoint included.
        eager: Train with plain eager PyTorch instead of a program, to compare with.
        scheduler: Any scheduler of `torch.optim.lr_scheduler` on `optimizer` whose state is plain
            numbers (ExponentialLR, CosineAnnealingLR, ReduceLROnPlateau, ...), fresh also on
            resume; the trainer steps it.
        scheduler_interval: Step it after each "epoch" or after each weight "update".
        ema_decay: Of the exponential moving average of the weights, per weight update; it is what
            validation, test and predictions use. None: no average.
        synthetic_data: Read one batch and use it again and again: no loading in the times.
        profile_dir: Where programs write reports of their time and memory; None: no reports.
        checkpoint: Where to save; None saves nothing.
        model_arguments: Keyword arguments of the network (JSON), so that predictions can rebuild
            it.
        fixed: Further settings that a resumed run must share, by name, such as the loss ("mse") and
            seeds. What the job itself shows (model, data, optimizer, schedule, options) is compared
            anyway.
        settings: What was asked for, nested like the config file, for report and checkpoint.
        model_description: Of the model, for the report; `parameters` is added, and
            `table_error` if filters are tabulated.
        machine: Description of the machine for the report.
    """

    regression: nn.Module
    optimizer: torch.optim.Optimizer
    dataset: MoleculeSet
    train_loader: FixedSizeLoader
    options: Options
    num_epochs: int
    validation_loader: FixedSizeLoader | None = None
    test_loader: FixedSizeLoader | None = None
    eager: bool = False
    scheduler: torch.optim.lr_scheduler.LRScheduler | None = None
    scheduler_interval: Literal["epoch", "update"] = "epoch"
    ema_decay: float | None = None
    synthetic_data: bool = False
    profile_dir: Path | None = None
    checkpoint: CheckpointPlan | None = None
    model_arguments: Mapping[str, Any] = field(default_factory=dict)
    fixed: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    model_description: Mapping[str, Any] = field(default_factory=dict)
    machine: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.num_epochs < 0:
            raise OptionsError(f"num_epochs must not be negative, got {self.num_epochs}")
        if self.ema_decay is not None and not 0 <= self.ema_decay < 1:
            raise OptionsError(
                f"ema_decay must be at least 0 and below 1, got {self.ema_decay}; usual are 0.99 "
                "to 0.9999, null for no average"
            )
        check_interval(self.scheduler_interval)
        if self.scheduler is not None:
            check_scheduler(self.scheduler, self.optimizer, self.scheduler_interval)
