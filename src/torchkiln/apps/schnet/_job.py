"""`TrainingJob`: everything that a training run needs, as one value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

from torchkiln.checkpoints import CheckpointStore
from torchkiln.core import CheckpointError, Options, OptionsError
from torchkiln.datasets import MoleculeSet
from torchkiln.graphs import FixedSizeLoader


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointPlan:
    """Where and how often a run is saved.

    Args:
        root: Directory of all checkpoints; each model has a directory of its own below it.
        model_name: Name of this one.
        every_epochs: Save after so many epochs; the last one and an interrupt are always saved.
        resume: Continue the checkpoint of that name instead of beginning one.
    """

    root: Path
    model_name: str
    every_epochs: int = 1
    resume: bool = False

    def __post_init__(self) -> None:
        if self.every_epochs < 1:
            raise OptionsError(
                f"checkpoint_epochs must be at least 1, got {self.every_epochs}; to save nothing "
                "use --checkpoint false"
            )
        name = Path(self.model_name).name
        if not name or name != self.model_name or name == "..":
            raise OptionsError(
                f"model_name {self.model_name!r} cannot be the name of a directory; use letters, "
                "digits, '-' and '_'"
            )

    @property
    def directory(self) -> Path:
        return self.root / self.model_name

    def check(self) -> None:
        """Refuse what would overwrite, or continue nothing; cheap enough to ask before all else.

        Raises:
            CheckpointError: There is a checkpoint and `resume` is off, or the other way round.
        """
        exists = CheckpointStore(self.directory).exists()
        if exists and not self.resume:
            raise CheckpointError(
                f"there is a checkpoint of {self.model_name!r} already, in {self.directory}; "
                "continue it with --resume true, or choose another --model_name"
            )
        if self.resume and not exists:
            known = sorted(
                path.name
                for path in (self.root.iterdir() if self.root.is_dir() else ())
                if CheckpointStore(path).exists()
            )
            names = f"there are {', '.join(known)}" if known else "there is none at all"
            raise CheckpointError(
                f"there is no checkpoint of {self.model_name!r} in {self.root} to resume: {names}; "
                "check --model_name, or begin one with --resume false"
            )


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
        profile_dir: Record one training step (the second) with torch's profiler into this folder.
        checkpoint: Where to save; None saves nothing.
        model_arguments: Keyword arguments of the network (JSON), so that predictions can rebuild
            it.
        fixed: Further settings that a resumed run must share, by name, such as the loss ("mse") and
            seeds. What the job itself shows (model, data, optimizer, schedule, options) is compared
            anyway.
        settings: What was asked for, nested like the config file, for report and checkpoint.
        model: Description of the model for the report; `parameters` is added, and
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
    model: Mapping[str, Any] = field(default_factory=dict)
    machine: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.num_epochs < 0:
            raise OptionsError(f"num_epochs must not be negative, got {self.num_epochs}")
        if self.ema_decay is not None and not 0 <= self.ema_decay < 1:
            raise OptionsError(
                f"ema_decay must be at least 0 and below 1, got {self.ema_decay}; usual are 0.99 "
                "to 0.9999, null for no average"
            )
        if self.scheduler_interval not in ("epoch", "update"):
            raise OptionsError(
                f"scheduler_interval must be 'epoch' or 'update', got {self.scheduler_interval!r}"
            )
        if self.scheduler is not None and self.scheduler.optimizer is not self.optimizer:
            raise OptionsError("the scheduler must belong to the optimizer of the job")
        plateau = torch.optim.lr_scheduler.ReduceLROnPlateau
        if isinstance(self.scheduler, plateau) and self.scheduler_interval != "epoch":
            raise OptionsError(
                "ReduceLROnPlateau watches whole epochs; use scheduler_interval='epoch'"
            )
