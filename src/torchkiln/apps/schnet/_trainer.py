"""`train`: a job on the training loop; what came of it is returned in any case."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from torchkiln.apps.schnet._batches import SyntheticBatches
from torchkiln.apps.schnet._identity import (
    describe_dataset,
    identity_of,
    overlook_rounding,
    without_labels,
)
from torchkiln.apps.schnet._job import WORDS, TrainingJob
from torchkiln.apps.schnet._requirements import check_several
from torchkiln.apps.schnet._task import MoleculeTask
from torchkiln.apps.schnet._worst import worst_predictions
from torchkiln.checkpoints import Checkpoint
from torchkiln.report import PredictedMolecule, QuietMonitor, RunMonitor, RunResult
from torchkiln.training._averaging import WeightAverage
from torchkiln.training._batches import EpochBatches, ResumableBatches
from torchkiln.training._best import BestWeights
from torchkiln.training._history import History
from torchkiln.training._loop import TrainingLoop
from torchkiln.training._outcome import Outcome
from torchkiln.training._ranks import Ranks
from torchkiln.training._saving import RunSaver, RunState
from torchkiln.training._schedule import TorchSchedule
from torchkiln.training._update_size import UpdateSize


def train(job: TrainingJob, monitor: RunMonitor | None = None) -> RunResult:
    """Train until the epochs are done, the loss is not finite, or the person stops it.

    The first Ctrl-C (or SIGTERM) ends the run after the present step: it is saved, if the job has a
    checkpoint, and the result says "interrupted". A second one, or one while programs are compiled,
    is a `KeyboardInterrupt`. A loss that is NaN or infinite gives a result that says "failed" with
    the molecules of that batch. The monitor is told, but neither given the result nor closed.
    Several processes call it alike; each gets the same result, and rank 0 saves.

    Raises:
        CheckpointError: There is a checkpoint but resuming was not asked for, or the other way
            round; or it was made with other settings.
    """
    monitor = monitor or QuietMonitor()
    ranks = Ranks.of(job.options)
    check_several(ranks.size, is_eager=job.eager)
    with contextlib.ExitStack() as stack:
        for loader in (job.train_loader, job.validation_loader, job.test_loader):
            if loader is not None:
                stack.callback(loader.terminate)
        packing = _mean_shares(ranks.gather(dict(job.train_loader.plan.efficiency)))
        state = make_state(job)
        saver, history = None, History()
        if job.checkpoint is not None:
            saver = make_saver(job, state, ranks)
            history = stack.enter_context(saver.opened())
        evaluated = job.regression if state.average is None else state.average.module
        task = MoleculeTask(job, evaluated, state.best, monitor.message, ranks)
        words = WORDS if saver is None else saver.words
        loop = TrainingLoop(task, state, saver, history, monitor, words, ranks)
        outcome = loop.run(job.num_epochs)
        if outcome.note:
            monitor.message(outcome.note)
        return _result(job, task, state, outcome, packing)


def _mean_shares(by_rank: list[dict[str, float]]) -> dict[str, float]:
    """Return the share of slots in use of all processes, which have equally many."""
    return {axis: sum(one[axis] for one in by_rank) / len(by_rank) for axis in by_rank[0]}


def make_state(job: TrainingJob) -> RunState:
    """Return everything of a job that training changes."""
    average = None
    if job.ema_decay is not None:
        updates = job.options.device_iterations
        average = WeightAverage(job.regression, job.ema_decay, updates_per_call=updates)
    make_batches = SyntheticBatches if job.synthetic_data else ResumableBatches
    batches: EpochBatches = make_batches(job.train_loader)
    averaged = None if average is None else _network(average.module)
    network = _network(job.regression)
    return RunState(
        module=job.regression,
        network=network,
        optimizer=job.optimizer,
        batches=batches,
        schedule=None
        if job.scheduler is None
        else TorchSchedule(job.scheduler, job.scheduler_interval),
        average=average,
        averaged=averaged,
        best=None if job.validation_loader is None else BestWeights(averaged or network),
    )


def make_saver(job: TrainingJob, state: RunState, ranks: Ranks | None = None) -> RunSaver:
    """Return who saves the job; make it before the job is touched.

    Raises:
        CheckpointError: There is a checkpoint and resuming was not asked for, or the other way
            round.
        OptionsError: The state of the scheduler cannot be kept.
    """
    plan = job.checkpoint
    assert plan is not None
    facts = {
        "model_name": plan.model_name,
        "model": dict(job.model_arguments),
        "transform": job.dataset.transform.to_dict(),
        "dataset": describe_dataset(job.dataset),
        "settings": dict(job.settings),
    }
    identity = identity_of(job, state)

    def upgrade(tensors: dict[str, Tensor], facts: dict[str, Any]) -> Checkpoint:
        tensors, facts = upgrade_checkpoint(tensors, facts)
        before = overlook_rounding(facts["identity"], identity)
        return Checkpoint(tensors, {**facts, "identity": before})

    return RunSaver(
        plan,
        state,
        identity=identity,
        facts=facts,
        update=UpdateSize.of(job.options),
        upgrade=upgrade,
        ranks=ranks,
    )


def upgrade_checkpoint(tensors: dict[str, Tensor], facts: dict[str, Any]) -> Checkpoint:
    """Turn what earlier versions wrote into what this one reads.

    They counted molecules only, not samples, and took labels for a part of what identifies a run.
    """

    def renamed(values: Mapping[str, Any]) -> dict[str, Any]:
        names = {"molecules": "samples", "molecules_per_s": "samples_per_s"}
        return {names.get(name, name): value for name, value in values.items()}

    sums, epochs = renamed(facts["sums"]), [renamed(record) for record in facts["epochs"]]
    identity = without_labels(facts["identity"])
    return Checkpoint(tensors, {**facts, "sums": sums, "epochs": epochs, "identity": identity})


def _network(regression: nn.Module) -> nn.Module:
    network = regression.model
    assert isinstance(network, nn.Module)
    return network


def _result(
    job: TrainingJob,
    task: MoleculeTask,
    state: RunState,
    outcome: Outcome,
    packing: dict[str, float],
) -> RunResult:
    facts = describe_dataset(job.dataset)
    tables = {} if task.tables.error is None else {"table_error": task.tables.error}
    return RunResult(
        status=outcome.status,
        settings=dict(job.settings),
        dataset={**facts, "sizes": facts["splits"], "form": str(job.dataset.transform)},
        model={
            **job.model_description,
            "parameters": sum(param.numel() for param in job.regression.parameters()),
            **tables,
        },
        machine=dict(job.machine),
        compile_seconds=outcome.compile_seconds,
        packing=packing,
        epochs=outcome.epochs,
        steps=outcome.history.steps(),
        validation=task.validation,
        test=task.test,
        best_epoch=None if state.best is None else state.best.epoch,
        note=outcome.note,
        counted="molecules",
        worst=_worst(job, task),
        world=outcome.world,
    )


def _worst(job: TrainingJob, task: MoleculeTask) -> list[PredictedMolecule]:
    """Return the worst predictions of the split that the run is judged by."""
    if task.test is not None:
        return worst_predictions(job.dataset, "test", task.test)
    if task.validation is not None:
        return worst_predictions(job.dataset, "validation", task.validation)
    return []
