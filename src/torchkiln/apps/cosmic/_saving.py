"""A run as a checkpoint, and back."""

from __future__ import annotations

import dataclasses
import enum
import json
from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, final

import torch
from torch import Tensor, nn

import torchkiln
from torchkiln.apps.cosmic._history import History
from torchkiln.apps.cosmic._settings import Settings
from torchkiln.checkpoints import (
    CheckpointStore,
    find_non_finite,
    load_optimizer_tensors,
    optimizer_tensors,
    random_state,
    set_random_state,
)
from torchkiln.core import CheckpointError
from torchkiln.training._identity import describe_changes

# How a step is computed, and where files are, may change on the way.
_FREE_TO_CHANGE = (
    "id",
    "output_dir",
    "compute_mode",
    "threads",
    "backend",
    "recompute",
    "cache_dir",
)


@final
class RunSaver:
    """Saves and restores what training changes.

    Args:
        settings: Of the run; its folder gets a folder "checkpoint".
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._store = CheckpointStore(settings.run.directory / "checkpoint")

    @property
    def directory(self) -> Path:
        return self._store.directory

    def claim(self) -> AbstractContextManager[None]:
        """Keep other processes from training under the same name."""
        return self._store.claim()

    def check(self) -> None:
        """Compare what there is with what was asked for.

        Raises:
            CheckpointError: There is a checkpoint and resuming was not asked for, or the other way
                round.
        """
        resume, exists = self._settings.mode.resume, self._store.exists()
        if exists and not resume:
            raise CheckpointError(
                f"{self.directory} holds a checkpoint already; go on with mode.resume=true, or "
                "choose another run.id"
            )
        if resume and not exists:
            raise CheckpointError(
                f"there is no checkpoint in {self.directory} to go on with; check run.id, or leave "
                "out mode.resume"
            )

    def save(self, network: nn.Module, optimizer: torch.optim.Optimizer, history: History) -> None:
        """Write a checkpoint of the run between two updates.

        Raises:
            CheckpointError: It could not be written, or there is NaN in the weights; the last good
                one is kept.
        """
        parts: dict[str, Mapping[str, Tensor]] = {"model": network.state_dict()}
        spoiled = find_non_finite(parts["model"])
        if spoiled is not None:
            raise CheckpointError(
                f"weight {spoiled!r} holds NaN or infinity and is not saved; the last good "
                f"checkpoint in {self.directory} is kept; lower mode.optimizer.learning_rate"
            )
        parts["optimizer"], optimizer_facts = optimizer_tensors(optimizer)
        parts["random"] = random_state()
        parts["history"], progress = history.to_checkpoint()
        facts = {
            "torchkiln": torchkiln.__version__,
            "network": self._settings.network,
            "identity": _identity(self._settings),
            "optimizer": optimizer_facts,
            **progress,
        }
        self._store.save(
            {f"{part}/{name}": t for part, tensors in parts.items() for name, t in tensors.items()},
            facts,
        )

    def restore(self, network: nn.Module, optimizer: torch.optim.Optimizer) -> History:
        """Put everything into the state of the checkpoint, random numbers included.

        Raises:
            CheckpointError: There is none, all are damaged, or it was made with other settings.
        """
        tensors, facts = self._store.load()
        changes = describe_changes(facts["identity"], _identity(self._settings))
        if changes:
            raise CheckpointError(
                f"the checkpoint in {self.directory} was made with other settings: "
                f"{changes}; resume with the same, or begin anew under another run.id"
            )
        network.load_state_dict(_below("model", tensors))
        load_optimizer_tensors(optimizer, _below("optimizer", tensors), facts["optimizer"])
        set_random_state(_below("random", tensors))
        return History.from_checkpoint(_below("history", tensors), facts)

    def load_network(self, network: nn.Module) -> None:
        """Give a network the weights of the checkpoint.

        Raises:
            CheckpointError: There is none, or it is that of another network.
        """
        tensors, facts = self._store.load()
        if facts["network"] != _plain(self._settings.network):
            raise CheckpointError(
                f"the checkpoint in {self.directory} is of a network with {facts['network']}, but "
                f"asked for is one with {self._settings.network}; give the same network settings"
            )
        network.load_state_dict(_below("model", tensors))


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
    return {
        f"{group}.{name}": _plain(value)
        for group, values in groups.items()
        for name, value in values.items()
    }


def _plain(value: Any) -> Any:
    """Return a value as JSON gives it back."""
    if isinstance(value, enum.Enum):
        return value.value
    return json.loads(json.dumps(value, default=str))


def _below(part: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    start = f"{part}/"
    return {name[len(start) :]: t for name, t in tensors.items() if name.startswith(start)}
