"""A training run as a checkpoint, and back."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import torch
from torch import Tensor, nn

import torchkiln
from torchkiln.checkpoints import (
    CheckpointStore,
    find_non_finite,
    load_optimizer_tensors,
    optimizer_tensors,
    random_state,
    set_random_state,
)
from torchkiln.core import CheckpointError, TorchkilnError, span, warn_user
from torchkiln.training._averaging import WeightAverage
from torchkiln.training._batches import EpochBatches
from torchkiln.training._best import BestWeights
from torchkiln.training._checkpoint_plan import CheckpointPlan, Words
from torchkiln.training._history import History, below
from torchkiln.training._identity import describe_changes
from torchkiln.training._schedule import Schedule

Upgrade = Callable[[dict[str, Tensor], dict[str, Any]], tuple[dict[str, Tensor], dict[str, Any]]]


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class RunState:
    """Everything that training changes.

    Args:
        module: All that is trained.
        network: The part of it whose weights are kept.
        optimizer: Over them.
        batches: Know how far the epoch is.
        schedule: Changes the learning rate; None: nobody does.
        average: Of the weights; None: there is none.
        averaged: The network within the average.
        best: The weights with the smallest validation error; None: nobody wants them.
    """

    module: nn.Module
    network: nn.Module
    optimizer: torch.optim.Optimizer
    batches: EpochBatches
    schedule: Schedule | None = None
    average: WeightAverage | None = None
    averaged: nn.Module | None = None
    best: BestWeights | None = None


@final
class RunSaver:
    """Saves and restores a run; make it before anything is trained.

    Args:
        plan: Where and how often.
        state: What is saved.
        identity: What a resumed run must share with the one that was saved, in JSON types, nested
            or with dotted names.
        facts: What the application adds: what is needed to use the weights.
        upgrade: Turns what earlier versions wrote into what this one reads.

    Raises:
        CheckpointError: There is a checkpoint and resuming was not asked for, or the other way
            round.
    """

    def __init__(
        self,
        plan: CheckpointPlan,
        state: RunState,
        *,
        identity: Mapping[str, Any],
        facts: Mapping[str, Any],
        upgrade: Upgrade | None = None,
    ) -> None:
        plan.check()
        self._plan = plan
        self._state = state
        self._store = CheckpointStore(plan.directory)
        self._identity = identity
        self._facts = facts
        self._upgrade = upgrade
        self._random: dict[str, Tensor] | None = None

    @property
    def directory(self) -> Path:
        return self._store.directory

    @property
    def words(self) -> Words:
        return self._plan.words

    @property
    def resumes(self) -> bool:
        return self._plan.resume

    @contextmanager
    def opened(self) -> Iterator[History]:
        """Keep other processes from training the same model; yield what there is of the run.

        Raises:
            CheckpointError: Another process trains it, or see `restore`.
        """
        with self._store.claim():
            yield self.restore() if self.resumes else History()

    def is_due(self, history: History) -> bool:
        """Tell whether an epoch that is done should be saved."""
        return history.epoch % self._plan.every_epochs == 0

    def is_due_within(self, history: History) -> bool:
        """Tell whether a step that is done should be saved."""
        every = self._plan.every_steps
        return every is not None and history.sums.steps % every == 0

    def save(self, history: History) -> None:
        """Write a checkpoint of the run between two calls.

        Raises:
            CheckpointError: It could not be written, or there is NaN in the weights; the last good
                one is kept.
        """
        with span("checkpoint", "save"):
            self._save(history)

    def _save(self, history: History) -> None:
        state, average = self._state, self._state.average
        parts: dict[str, Mapping[str, Tensor]] = {"model": state.network.state_dict()}
        if state.averaged is not None:
            parts["average"] = state.averaged.state_dict()
        best: dict[str, Any] = {}
        if state.best is not None:
            parts["best"], best["best"] = state.best.to_checkpoint()
        for name, tensors in parts.items():
            self._require_finite(name, tensors)
        parts["optimizer"], optimizer = optimizer_tensors(state.optimizer)
        parts["history"], progress = history.to_checkpoint()
        loader, parts["loader"] = state.batches.state_dict(), state.batches.tensors()
        parts["random"] = random_state()
        facts = {
            "torchkiln": torchkiln.__version__,
            **self._facts,
            **progress,
            "loader": loader,
            "optimizer": optimizer,
            "scheduler": None if state.schedule is None else state.schedule.state_dict(),
            "average_updates": None if average is None else average.num_updates,
            **best,
            "threads": torch.get_num_threads(),
            "parameters": sum(param.numel() for param in state.network.parameters()),
            "identity": self._identity,
        }
        self._store.save(
            {f"{part}/{name}": t for part, tensors in parts.items() for name, t in tensors.items()},
            facts,
        )

    def _require_finite(self, part: str, tensors: Mapping[str, Tensor]) -> None:
        spoiled = find_non_finite(tensors)
        if spoiled is not None:
            raise CheckpointError(
                f"{part} weight {spoiled!r} holds NaN or infinity and is not saved; the last good "
                f"checkpoint in {self.directory} is kept; lower {self.words.learning_rate}"
            )

    def restore(self) -> History:
        """Put everything into the state of the checkpoint, but for random numbers.

        Raises:
            CheckpointError: There is none, all are damaged, or it was made with other settings.
            LoaderError: The batches are others.
        """
        with span("checkpoint", "restore"):
            return self._restore()

    def _restore(self) -> History:
        tensors, facts = self._store.load()
        try:
            if self._upgrade is not None:
                tensors, facts = self._upgrade(tensors, facts)
            return self._put_back(tensors, facts)
        except TorchkilnError as error:
            if self._plan.doubtful:
                raise self._other_settings(" and ".join(self._plan.doubtful)) from error
            raise
        except Exception as error:  # of another version: whatever odd values lead to
            raise CheckpointError(
                f"the checkpoint in {self.directory} cannot be resumed ({type(error).__name__}: "
                f"{error}); use the version of Torchkiln that wrote it, or begin anew under "
                f"another {self.words.name}"
            ) from error

    def _put_back(self, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> History:
        state = self._state
        self._require_same(facts["identity"])
        threads = facts.get("threads", torch.get_num_threads())
        if threads != torch.get_num_threads():
            warn_user(
                f"the checkpoint was made with {threads} threads, now there are "
                f"{torch.get_num_threads()}: losses may differ in the last digits"
            )
        state.network.load_state_dict(below("model/", tensors))
        if state.average is not None and state.averaged is not None:
            state.averaged.load_state_dict(below("average/", tensors))
            state.average.num_updates = facts["average_updates"]
        if state.best is not None:
            state.best.restore(below("best/", tensors), facts.get("best"))
        load_optimizer_tensors(state.optimizer, below("optimizer/", tensors), facts["optimizer"])
        if state.schedule is not None:
            state.schedule.load_state_dict(facts["scheduler"])
        state.batches.load_state_dict(facts["loader"], below("loader/", tensors))
        self._random = below("random/", tensors)
        return History.from_checkpoint(below("history/", tensors), facts)

    def restore_random_state(self) -> None:
        """Let random numbers go on; right before training, as making programs may seed torch."""
        if self._random is not None:
            set_random_state(self._random)

    def _require_same(self, saved: Mapping[str, Any]) -> None:
        changes = describe_changes(saved, self._identity, self.words.change)
        if changes:
            raise self._other_settings(changes)

    def _other_settings(self, changes: str) -> CheckpointError:
        return CheckpointError(
            f"the checkpoint in {self.directory} was made with other settings: {changes}; resume "
            f"with the same, or begin anew under another {self.words.name}"
        )
