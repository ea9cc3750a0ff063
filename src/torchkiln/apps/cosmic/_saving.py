"""Where a run is saved, what a resumed one must share with it, and what earlier versions wrote."""

from __future__ import annotations

import dataclasses
import enum
import json
import math
import shlex
from typing import Any

import torch
from torch import Tensor

from torchkiln.apps.cosmic._record import ACCURACY, HELD_OUT, MEAN_IOU, TRAIN
from torchkiln.apps.cosmic._resumed_arguments import FOLDER
from torchkiln.apps.cosmic._settings import RunSettings, Settings
from torchkiln.checkpoints import Checkpoint, CheckpointStore
from torchkiln.core import CheckpointError
from torchkiln.training._checkpoint_plan import CheckpointPlan, Words
from torchkiln.training._history import below
from torchkiln.training._ranks import Ranks
from torchkiln.training._saving import RunSaver, RunState
from torchkiln.training._update_size import UpdateSize

# How a step is computed, and where files are, may change on the way.
_FREE_TO_CHANGE = (
    "id",
    "output_dir",
    "compute_mode",
    "threads",
    "backend",
    "recompute",
    "cache_dir",
    "collective_timeout_s",
    "pipeline",
)


def words_of(settings: Settings, command: str = "python cosmic_tagger.py") -> Words:
    """Return how a person says things to CosmicTagger, which was called by `command`."""
    go_on = ["mode.resume=true", f"run.id={settings.run.id}"]
    if settings.run.output_dir != RunSettings.output_dir:
        go_on.append(f"run.output_dir={settings.run.output_dir}")
    return Words(
        go_on="mode.resume=true",
        begin="mode.resume=false",
        name="run.id",
        go_on_here=f"{command} {shlex.join(go_on)}",
        save="mode.checkpoint_epochs is 0",
        learning_rate="mode.optimizer.learning_rate",
        every_epochs="mode.checkpoint_epochs",
        counts="updates",
        change="{name}={now} (the checkpoint has {before})",
        counted="images",
    )


def checkpoint_plan(settings: Settings, command: str = "python cosmic_tagger.py") -> CheckpointPlan:
    """Return where and how often a run is saved: into the folder "checkpoint" of its own."""
    return CheckpointPlan(
        root=settings.run.directory,
        model_name=FOLDER,
        every_epochs=settings.mode.checkpoint_epochs,
        resume=settings.mode.resume,
        words=words_of(settings, command),
    )


def make_saver(
    settings: Settings, state: RunState, plan: CheckpointPlan, ranks: Ranks | None = None
) -> RunSaver:
    """Return who saves a run as `plan` says.

    Raises:
        CheckpointError: There is a checkpoint and resuming was not asked for, or the other way
            round.
    """
    ranks = ranks or Ranks()
    accumulation = settings.mode.optimizer.gradient_accumulation
    images = settings.run.minibatch_size * accumulation

    def upgrade(tensors: dict[str, Tensor], facts: dict[str, Any]) -> Checkpoint:
        return upgrade_checkpoint(tensors, facts, images)

    return RunSaver(
        plan,
        state,
        identity=_identity(settings),
        facts={"network": settings.network, "settings": settings_by_name(settings)},
        update=UpdateSize(processes=ranks.num_copies, accumulation=accumulation),
        upgrade=upgrade,
        ranks=ranks,
    )


def load_weights(settings: Settings) -> dict[str, Tensor]:
    """Return the weights that the checkpoint of a run has for its network.

    Raises:
        CheckpointError: There is none, or it is that of another network.
    """
    directory = settings.run.directory / FOLDER
    tensors, facts = CheckpointStore(directory).load()
    if facts["network"] != _plain(settings.network):
        raise CheckpointError(
            f"the checkpoint in {directory} is of a network with {facts['network']}, but "
            f"asked for is one with {settings.network}; give the same network settings"
        )
    return below("model/", tensors)


def upgrade_checkpoint(
    tensors: dict[str, Tensor], facts: dict[str, Any], images_per_update: int
) -> Checkpoint:
    """Turn what CosmicTagger wrote when it had a training loop of its own into what is read now."""
    if "sums" in facts:
        return Checkpoint(tensors, facts)
    tensors = dict(tensors)
    losses, done = tensors["history/losses"], facts["done"]
    tensors[f"history/series/{ACCURACY}"] = tensors.pop("history/accuracies")
    tensors[f"history/series/{MEAN_IOU}"] = torch.full_like(losses, math.nan)  # was not kept
    tensors["history/totals/counts"] = tensors.pop("history/counts")
    samples = done * images_per_update
    sums = {
        "steps": done,
        "loss_sum": sum(losses.tolist()[len(losses) - done :]) * images_per_update,
        "samples": samples,
        "seconds": facts["seconds"],
    }
    return Checkpoint(
        tensors,
        {
            **facts,
            "step": len(losses),
            "sums": sums,
            "epochs": [_upgrade_epoch(record) for record in facts["epochs"]],
            "loader": {"epoch": facts["epoch"], "done": done},
            "scheduler": None,
            "average_updates": None,
        },
    )


def _upgrade_epoch(record: dict[str, Any]) -> dict[str, Any]:
    seconds, images = record["seconds"], record["images"]
    return {
        "epoch": record["epoch"],
        "loss": record["loss"],
        "seconds": seconds,
        "samples": images,
        "samples_per_s": images / seconds if seconds else 0.0,
        "learning_rate": record["learning_rate"],
        "figures": {
            f"{which}/{name}": value
            for which in (TRAIN, HELD_OUT)
            for name, value in record[which].items()
        },
    }


def _identity(settings: Settings) -> dict[str, Any]:
    """Return what a resumed run must share with the one that was saved, by dotted name."""
    groups: dict[str, Any] = {
        "mode.optimizer": dataclasses.asdict(settings.mode.optimizer),
        "run": dataclasses.asdict(settings.run),
        "data": dataclasses.asdict(settings.data),
        "network": settings.network,
    }
    for name in _FREE_TO_CHANGE:
        del groups["run"][name]
    for name in ("in_memory", "num_workers"):
        del groups["data"][name]
    return _by_name(groups)


def settings_by_name(settings: Settings) -> dict[str, Any]:
    """Return all settings by dotted name, in JSON types."""
    mode = dataclasses.asdict(settings.mode)
    return _by_name(
        {
            "mode.optimizer": mode.pop("optimizer"),
            "mode": mode,
            "run": dataclasses.asdict(settings.run),
            "data": dataclasses.asdict(settings.data),
            "network": settings.network,
        }
    )


def _by_name(groups: dict[str, dict[str, Any]]) -> dict[str, Any]:
    return {
        f"{group}.{name}": _plain(value)
        for group, values in groups.items()
        for name, value in values.items()
    }


def _plain(value: Any) -> Any:
    """Return a value as JSON gives it back."""
    if isinstance(value, enum.Enum):
        return value.name
    return json.loads(json.dumps(value, default=str))
