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
    gather_optimizer_state,
    load_optimizer_tensors,
    optimizer_tensors,
    random_state,
    set_random_state,
)
from torchkiln.core import CheckpointError, TorchkilnError, span, warn_user
from torchkiln.training._averaging import WeightAverage
from torchkiln.training._batches import EpochBatches
from torchkiln.training._best import BestWeights
from torchkiln.training._buffers import RankBuffers
from torchkiln.training._checkpoint_plan import CheckpointPlan, Words
from torchkiln.training._history import History, below
from torchkiln.training._identity import describe_changes, flatten_identity
from torchkiln.training._rank_states import RankState, from_checkpoint, to_checkpoint
from torchkiln.training._ranks import Ranks
from torchkiln.training._restarts import job_name
from torchkiln.training._schedule import Schedule
from torchkiln.training._update_size import PARTS, UpdateSize

Upgrade = Callable[[dict[str, Tensor], dict[str, Any]], tuple[dict[str, Tensor], dict[str, Any]]]


class OtherUpdateSizeError(CheckpointError):
    """Updates of the run that is continued have another number of mini-batches."""


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

    def buffers(self, ranks: Ranks) -> RankBuffers:
        """Return the buffers of everything that several processes train or judge."""
        copies = {} if self.average is None else {"average": self.average.module}
        return RankBuffers(ranks, {"module": self.module, **copies})


@final
class RunSaver:
    """Saves and restores a run; make it before anything is trained.

    With several processes, rank 0 reads and writes, and the others get what it reads: they need not
    see its disk.

    Args:
        plan: Where and how often.
        state: What is saved.
        identity: What a resumed run must share with the one that was saved, in JSON types, nested
            or with dotted names.
        facts: What the application adds: what is needed to use the weights.
        update: How many mini-batches share an update, and who computes them.
        upgrade: Turns what earlier versions wrote into what this one reads.
        ranks: The processes that train together; None: there is one.

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
        update: UpdateSize,
        upgrade: Upgrade | None = None,
        ranks: Ranks | None = None,
    ) -> None:
        self._ranks = ranks or Ranks()
        self._ranks.first_does("look for a checkpoint", plan.check)
        self._plan = plan
        self._update = update
        self._buffers = state.buffers(self._ranks)
        self._state = state
        self._store = CheckpointStore(plan.directory)
        self._identity = identity
        self._facts = facts
        self._upgrade = upgrade
        self._random: dict[str, Tensor] | None = None
        self._own_buffers: dict[str, Tensor] = {}
        self._has_saved = False

    @property
    def directory(self) -> Path:
        return self._store.directory

    @property
    def words(self) -> Words:
        return self._plan.words

    @property
    def resumes(self) -> bool:
        return self._plan.resume

    @property
    def has_saved(self) -> bool:
        """Whether there is a checkpoint to go on from: one that was resumed, or a new one."""
        return self.resumes or self._has_saved

    @contextmanager
    def opened(self) -> Iterator[History]:
        """Keep other processes from training the same model; yield what there is of the run.

        Raises:
            CheckpointError: Another process trains it, or see `restore`.
        """
        with self._ranks.first_enters("claim the checkpoint", self._store.claim):
            yield self.restore() if self.resumes else History()

    def is_due(self, history: History) -> bool:
        """Tell whether an epoch that is done should be saved."""
        return history.epoch % self._plan.every_epochs == 0

    def is_due_within(self, history: History) -> bool:
        """Tell whether a step that is done should be saved."""
        every = self._plan.every_steps
        return every is not None and history.sums.steps % every == 0

    def save(self, history: History) -> None:
        """Write a checkpoint of the run between two calls; all processes take part.

        Raises:
            CheckpointError: It could not be written, or there is NaN in the weights; the last good
                one is kept.
        """
        with span("checkpoint", "save"):
            batches = self._state.batches
            own = RankState(
                random=random_state(),
                loader=batches.state_dict(),
                loader_tensors=batches.tensors(),
                buffers=self._buffers.own(),
            )
            states = self._ranks.of_copies(self._ranks.gather(own))
            gather_optimizer_state(self._state.optimizer, to="first")
            with self._buffers.averaged([one.buffers for one in states]):
                self._ranks.first_does("save", lambda: self._write(history, states))
        self._has_saved = True

    def _write(self, history: History, states: list[RankState]) -> None:
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
        of_ranks, rank_facts = to_checkpoint(states)
        job = job_name()
        facts = {
            "torchkiln": torchkiln.__version__,
            **self._facts,
            **progress,
            **rank_facts,
            "optimizer": optimizer,
            "scheduler": None if state.schedule is None else state.schedule.state_dict(),
            "average_updates": None if average is None else average.num_updates,
            **best,
            "threads": torch.get_num_threads(),
            "parameters": sum(param.numel() for param in state.network.parameters()),
            "update": self._update.to_dict(),
            **({} if job is None else {"job": job}),
            "identity": self._identity,
        }
        own = {f"{part}/{name}": t for part, found in parts.items() for name, t in found.items()}
        self._store.save({**own, **of_ranks}, facts)

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
        checkpoint = self._ranks.first_does("read the checkpoint", self._store.load)
        return self._ranks.all_do("resume", lambda: self._take_over(*checkpoint))

    def _take_over(self, tensors: dict[str, Tensor], facts: dict[str, Any]) -> History:
        try:
            if self._upgrade is not None:
                tensors, facts = self._upgrade(tensors, facts)
            return self._put_back(tensors, facts)
        except OtherUpdateSizeError:
            raise
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
        self._require_same(facts)
        threads = facts.get("threads", torch.get_num_threads())
        if threads != torch.get_num_threads():
            self._warn(
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
        own = from_checkpoint(tensors, facts, self._ranks.copy, self._ranks.num_copies)
        state.batches.load_state_dict(own.loader, own.loader_tensors)
        self._random, self._own_buffers = own.random, own.buffers
        return History.from_checkpoint(below("history/", tensors), facts)

    def restore_buffers(self) -> None:
        """Give this process its own buffers; after programs are made, which begin with rank 0's."""
        self._buffers.restore(self._own_buffers)

    def restore_random_state(self) -> None:
        """Let random numbers go on; right before training, as making programs may seed torch."""
        if self._random is not None:
            set_random_state(self._random)

    def _require_same(self, facts: Mapping[str, Any]) -> None:
        before, now = (flatten_identity(one) for one in (facts["identity"], self._identity))
        update = UpdateSize.saved(facts, before)
        for name in PARTS:
            before.pop(name, None), now.pop(name, None)
        changes = describe_changes(before, now, self.words.change)
        if changes:
            raise self._other_settings(changes)
        if update.total != self._update.total:
            raise OtherUpdateSizeError(
                f"the checkpoint in {self.directory} has {update}; this run would have "
                f"{self._update}: {self._update.what_would_work(update.total)}"
            )
        if update != self._update:
            self._warn(
                f"the checkpoint has {update}; now these are {self._update}: losses may differ in "
                "the last digits, and random numbers of further processes are new"
            )

    def _warn(self, text: str) -> None:
        """Tell the person something that all processes find out."""
        if self._ranks.is_first:
            warn_user(text)

    def _other_settings(self, changes: str) -> CheckpointError:
        return CheckpointError(
            f"the checkpoint in {self.directory} was made with other settings: {changes}; resume "
            f"with the same, or begin anew under another {self.words.name}"
        )
