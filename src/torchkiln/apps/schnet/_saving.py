"""A training run as a checkpoint, and back."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, final

import torch
from torch import Tensor, nn

import torchkiln
from torchkiln.apps.schnet._batches import EpochBatches
from torchkiln.apps.schnet._job import CheckpointPlan, TrainingJob
from torchkiln.checkpoints import (
    CheckpointStore,
    find_non_finite,
    load_optimizer_tensors,
    optimizer_tensors,
    random_state,
    set_random_state,
)
from torchkiln.core import CheckpointError, OptionsError, TorchkilnError, warn_user
from torchkiln.datasets import MoleculeSet
from torchkiln.training._averaging import WeightAverage
from torchkiln.training._history import History
from torchkiln.training._identity import describe_changes

_OPTIONS = (
    "device_iterations",
    "gradient_accumulation",
    "replication_factor",
    "reduction",
    "precision",
)


@final
class RunSaver:
    """Saves and restores what a job changes; make it before the job is touched.

    Raises:
        CheckpointError: There is a checkpoint and resuming was not asked for, or the other way
            round.
        OptionsError: The state of the scheduler cannot be kept.
    """

    def __init__(self, job: TrainingJob, plan: CheckpointPlan) -> None:
        plan.check()
        self._job = job
        self._plan = plan
        self._store = CheckpointStore(plan.directory)
        self._identity = identity_of(job)
        self._random: dict[str, Tensor] | None = None

    @property
    def directory(self) -> Path:
        return self._store.directory

    @property
    def model_name(self) -> str:
        return self._plan.model_name

    @property
    def resumes(self) -> bool:
        return self._plan.resume

    def claim(self) -> AbstractContextManager[None]:
        """Keep other processes from training the same model."""
        return self._store.claim()

    def is_due(self, epochs_done: int) -> bool:
        return epochs_done % self._plan.every_epochs == 0

    def save(self, history: History, batches: EpochBatches, average: WeightAverage | None) -> None:
        """Write a checkpoint of the run between two calls.

        Raises:
            CheckpointError: It could not be written, or there is NaN in the weights; the last good
                one is kept.
        """
        job = self._job
        parts: dict[str, Mapping[str, Tensor]] = {"model": _network(job.regression).state_dict()}
        if average is not None:
            parts["average"] = _network(average.module).state_dict()
        for name, tensors in parts.items():
            spoiled = find_non_finite(tensors)
            if spoiled is not None:
                raise CheckpointError(
                    f"{name} weight {spoiled!r} holds NaN or infinity and is not saved; the last "
                    f"good checkpoint in {self.directory} is kept; lower the learning rate"
                )
        parts["optimizer"], optimizer = optimizer_tensors(job.optimizer)
        parts["random"] = random_state()
        parts["history"], progress = history.to_checkpoint()
        facts = {
            "torchkiln": torchkiln.__version__,
            "model_name": self._plan.model_name,
            "model": dict(job.model_arguments),
            "transform": job.dataset.transform.to_dict(),
            "dataset": describe_dataset(job.dataset),
            **progress,
            "loader": batches.state_dict(),
            "optimizer": optimizer,
            "scheduler": None if job.scheduler is None else job.scheduler.state_dict(),
            "average_updates": None if average is None else average.num_updates,
            "threads": torch.get_num_threads(),
            "identity": self._identity,
            "settings": dict(job.settings),
        }
        self._store.save(
            {f"{part}/{name}": t for part, tensors in parts.items() for name, t in tensors.items()},
            facts,
        )

    def restore(self, batches: EpochBatches, average: WeightAverage | None) -> History:
        """Put the job into the state of the checkpoint, but for random numbers.

        Raises:
            CheckpointError: There is none, all are damaged, or it was made with other settings.
            LoaderError: The batches are others.
        """
        tensors, facts = self._store.load()
        try:
            return self._put_back(tensors, facts, batches, average)
        except TorchkilnError:
            raise
        except Exception as error:  # of another version: whatever odd values lead to
            raise CheckpointError(
                f"the checkpoint in {self.directory} cannot be resumed ({type(error).__name__}: "
                f"{error}); use the version of Torchkiln that wrote it, or begin anew under "
                "another --model_name"
            ) from error

    def _put_back(
        self,
        tensors: Mapping[str, Tensor],
        facts: Mapping[str, Any],
        batches: EpochBatches,
        average: WeightAverage | None,
    ) -> History:
        job = self._job
        self._require_same(facts["identity"])
        if facts["threads"] != torch.get_num_threads():
            warn_user(
                f"the checkpoint was made with {facts['threads']} threads, now there are "
                f"{torch.get_num_threads()}: losses may differ in the last digits"
            )
        _network(job.regression).load_state_dict(_below("model", tensors))
        if average is not None:
            _network(average.module).load_state_dict(_below("average", tensors))
            average.num_updates = facts["average_updates"]
        load_optimizer_tensors(job.optimizer, _below("optimizer", tensors), facts["optimizer"])
        if job.scheduler is not None:
            job.scheduler.load_state_dict(facts["scheduler"])
        batches.load_state_dict(facts["loader"])
        self._random = _below("random", tensors)
        return History.from_checkpoint(_below("history", tensors), facts)

    def restore_random_state(self) -> None:
        """Let random numbers go on; right before training, as making programs may seed torch."""
        if self._random is not None:
            set_random_state(self._random)

    def _require_same(self, saved: Mapping[str, Any]) -> None:
        changes = describe_changes(dict(_flatten(saved)), dict(_flatten(self._identity)))
        if changes:
            raise CheckpointError(
                f"the checkpoint of {self._plan.model_name!r} was made with other settings: "
                f"{changes}; resume with the same, or begin anew under another "
                "--model_name"
            )


def identity_of(job: TrainingJob) -> dict[str, Any]:
    """Return, in JSON types, what a resumed run must share with the one that was saved.

    How many epochs there are, and how a step is compiled, may change.
    """
    options = job.options.to_dict()
    scheduler = job.scheduler
    dataset = describe_dataset(job.dataset)
    del dataset["source"]  # files may have moved
    return {
        "model": _plain("model_arguments", dict(job.model_arguments)),
        "dataset": dataset,
        "transform": job.dataset.transform.to_dict(),
        "optimizer": {
            "kind": type(job.optimizer).__name__,
            **_plain("the numbers of the optimizer", job.optimizer.defaults),
        },
        "scheduler": None
        if scheduler is None
        else {
            "kind": type(scheduler).__name__,
            "interval": job.scheduler_interval,
            **_plain(f"the state of {type(scheduler).__name__}", scheduler.state_dict()),
        },
        "ema_decay": job.ema_decay,
        "synthetic_data": job.synthetic_data,
        "options": {name: options[name] for name in _OPTIONS},
        **_plain("fixed", dict(job.fixed)),
    }


def describe_dataset(dataset: MoleculeSet) -> dict[str, Any]:
    """Return facts about the molecules; `elements` are those that training sees."""
    train = dataset.molecules.take(dataset.splits["train"])
    return {**dataset.describe(), "elements": train.elements}


def _network(regression: nn.Module) -> nn.Module:
    network = regression.model
    assert isinstance(network, nn.Module)
    return network


def _plain(what: str, values: dict[str, Any]) -> dict[str, Any]:
    """Return `values` as JSON gives them back, if that is all there is to them."""
    try:
        result: dict[str, Any] = json.loads(json.dumps(values))
    except TypeError as error:
        raise OptionsError(f"{what} cannot be kept in a checkpoint: {error}") from None
    for name, value in values.items():
        # Keys that are numbers come back as strings.
        if isinstance(value, Mapping) and set(value) != set(result[name]):
            raise OptionsError(
                f"{what} cannot be kept in a checkpoint: {name} is {value!r}; use ExponentialLR, "
                "CosineAnnealingLR or ReduceLROnPlateau"
            )
    return result


def _below(part: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    start = f"{part}/"
    return {name[len(start) :]: t for name, t in tensors.items() if name.startswith(start)}


def _flatten(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _flatten(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value
