"""`train`: epochs of steps, validation, checkpoints; what came of it is returned in any case."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Iterator
from typing import Any, final

import torch
from torch import Tensor

from torchkiln.apps.schnet._batches import (
    EpochBatches,
    LiveBatches,
    SyntheticBatches,
    count_real,
    peek,
    real_indices,
)
from torchkiln.apps.schnet._evaluation import Evaluation, Evaluator
from torchkiln.apps.schnet._filter_tables import TableWatch, tabulated
from torchkiln.apps.schnet._job import TrainingJob
from torchkiln.apps.schnet._profile import profile_call
from torchkiln.apps.schnet._saving import RunSaver, describe_dataset
from torchkiln.apps.schnet._steps import EagerStep, ProgramStep, TrainingStep
from torchkiln.checkpoints import find_non_finite
from torchkiln.core import CheckpointError
from torchkiln.graphs import FixedSizeLoader
from torchkiln.report import (
    EpochRecord,
    QuietMonitor,
    RunMonitor,
    RunResult,
    StepRecord,
    ValidationResult,
)
from torchkiln.report._record import Status
from torchkiln.training._averaging import WeightAverage
from torchkiln.training._history import History
from torchkiln.training._interrupt import Interrupted, InterruptGuard

_MAX_NAMED = 20


class _Failed(Exception):  # noqa: N818 - caught in this file
    """Training cannot go on; says why."""


def train(job: TrainingJob, monitor: RunMonitor | None = None) -> RunResult:
    """Train until the epochs are done, the loss is not finite, or the person stops it.

    The first Ctrl-C (or SIGTERM) ends the run after the present step: it is saved, if the job has a
    checkpoint, and the result says "interrupted". A second one, or one while programs are compiled,
    is a `KeyboardInterrupt`. A loss that is NaN or infinite gives a result that says "failed" with
    the molecules of that batch. The monitor is told, but neither given the result nor closed.

    Raises:
        CheckpointError: There is a checkpoint but resuming was not asked for, or the other way
            round; or it was made with other settings.
    """
    with contextlib.ExitStack() as stack:
        for loader in (job.train_loader, job.validation_loader, job.test_loader):
            if loader is not None:
                stack.callback(loader.terminate)
        saver = None
        if job.checkpoint is not None:
            saver = RunSaver(job, job.checkpoint)
            stack.enter_context(saver.claim())
        return _Run(job, saver, monitor or QuietMonitor()).run()


@final
class _Run:
    """One run from start to end; its methods are in the order in which they are called."""

    def __init__(self, job: TrainingJob, saver: RunSaver | None, monitor: RunMonitor) -> None:
        self._job = job
        self._saver = saver
        self._monitor = monitor
        self._guard = InterruptGuard()
        self._history = History()
        self._packing = dict(job.train_loader.plan.efficiency)
        self._average: WeightAverage | None = None
        if job.ema_decay is not None:
            updates = job.options.device_iterations
            self._average = WeightAverage(job.regression, job.ema_decay, updates)
        make_batches = SyntheticBatches if job.synthetic_data else LiveBatches
        self._batches: EpochBatches = make_batches(job.train_loader)
        if saver is not None and saver.resumes:
            self._history = saver.restore(self._batches, self._average)
        make_step = EagerStep if job.eager else ProgramStep
        self._step: TrainingStep = make_step(job.regression.train(), job.options, job.optimizer)
        evaluated = job.regression if self._average is None else self._average.module
        self._evaluator = Evaluator(evaluated, job.dataset, eager=job.eager)
        self._tables = TableWatch(tabulated(evaluated, job.train_loader.spec))
        self._compile_seconds: float | None = None
        self._wants_profile = job.profile_dir is not None
        self._overhead = 0.0  # seconds of the profiler in the present step, which are not training
        self._validation: ValidationResult | None = None
        self._test: ValidationResult | None = None

    def run(self) -> RunResult:
        history = self._history
        if self._saver is not None and self._saver.resumes:
            self._monitor.message(
                f"continuing {self._saver.directory} {self._where()}, after {history.updates:,} "
                "weight updates"
            )
        batches = self._compile()
        if self._saver is not None:
            self._saver.restore_random_state()
        self._monitor.start(self._job.num_epochs, history.epoch)
        status: Status = "finished"
        note = ""
        with self._guard:
            try:
                self._train(batches)
            except Interrupted:
                status, note = "interrupted", self._leave()
            except _Failed as failure:
                status, note = "failed", str(failure)
        if note:
            self._monitor.message(note)
        return self._result(status, note)

    def _where(self) -> str:
        """Say how far the run is; people count from 1, as the monitors do."""
        total = self._job.num_epochs
        return f"in epoch {min(self._history.epoch + 1, total)} of {total}"

    def _compile(self) -> Iterator[Any] | None:
        """Build the programs; return the batches of the first epoch if it has any left."""
        job, epoch = self._job, self._history.epoch
        seconds, batches = None, None
        if epoch < job.num_epochs and not self._is_trained(epoch):
            first, batches = peek(self._batches.read(epoch))
            seconds = self._step.compile(first)
        if job.validation_loader is not None and not job.eager:
            seconds = (seconds or 0.0) + self._evaluator.compile(job.validation_loader)
        self._compile_seconds = seconds
        return batches

    def _is_trained(self, epoch: int) -> bool:
        """Whether all batches of the epoch were used, as after an interrupt in its validation."""
        return bool(self._batches.state_dict()["epoch"] > epoch)

    def _train(self, batches: Iterator[Any] | None) -> None:
        job, history = self._job, self._history
        while history.epoch < job.num_epochs:
            if batches is not None or not self._is_trained(history.epoch):
                self._train_epoch(batches or self._batches.read(history.epoch))
                batches = None
            self._finish_epoch()
        if job.validation_loader is not None and self._validation is None:
            self._validation = self._evaluate(job.validation_loader).result
        if job.test_loader is not None:
            self._test = self._evaluate(job.test_loader).result
        self._require_sound()

    def _train_epoch(self, batches: Iterator[Any]) -> None:
        job, history = self._job, self._history
        epoch = history.epoch
        num_parts = job.options.combined_factor
        num_steps = self._batches.num_batches(epoch)
        clock = time.perf_counter()
        for batch in batches:
            losses = self._call(batch, num_steps)
            counts = count_real(batch, num_parts)
            self._require_finite(losses, batch, num_steps)
            if self._average is not None:
                self._average.update()
            if job.scheduler_interval == "update":
                self._decay(job.options.device_iterations)
            seconds, clock = time.perf_counter() - clock - self._overhead, time.perf_counter()
            self._overhead = 0.0
            loss = history.take(losses, counts, job.options.micro_batches_per_update, seconds)
            record = StepRecord(
                epoch=epoch,
                step=history.sums.steps - 1,
                steps_in_epoch=num_steps,
                loss=loss,
                samples=int(counts.sum()),
                seconds=seconds,
            )
            self._monitor.step(record)
            self._guard.check()

    def _call(self, batch: Any, num_steps: int) -> Tensor:
        warm = self._history.sums.steps > 0 or num_steps == 1
        if not (self._wants_profile and warm):
            return self._step(batch)
        self._wants_profile = False
        assert self._job.profile_dir is not None
        start = time.perf_counter()
        losses, seconds, paths = profile_call(lambda: self._step(batch), self._job.profile_dir)
        self._overhead = time.perf_counter() - start - seconds
        self._monitor.message(f"profile of one step: {', '.join(map(str, paths))}")
        return losses

    def _require_finite(self, losses: Tensor, batch: Any, num_steps: int) -> None:
        wrong = torch.nonzero(~torch.isfinite(losses)).flatten()
        if not len(wrong):
            return
        history, part = self._history, int(wrong[0])
        indices = real_indices(batch, len(losses), part).tolist()
        names = self._job.dataset.molecules.names
        named = [f"{i} ({names[i]})" if names is not None else str(i) for i in indices]
        more = f" and {len(named) - _MAX_NAMED} more" if len(named) > _MAX_NAMED else ""
        kept = ""
        if self._saver is not None:
            kept = f"; the last good checkpoint is kept in {self._saver.directory}"
        raise _Failed(
            f"the loss is {float(losses[part])} {self._where()}, step {history.sums.steps + 1} of "
            f"{num_steps}, mini-batch {part + 1} of {len(losses)}, with the molecules "
            f"{', '.join(named[:_MAX_NAMED])}{more}: look at these, or lower the learning rate"
            f"{kept}"
        )

    def _require_sound(self) -> None:
        """Raise if the last update spoiled the weights: no later loss can show it."""
        spoiled = find_non_finite(self._job.regression.state_dict())
        if spoiled is not None:
            raise _Failed(f"weight {spoiled!r} holds NaN or infinity: lower the learning rate")
        for name, split in (("validation", self._validation), ("test", self._test)):
            if split is not None and not math.isfinite(split.mae):
                raise _Failed(
                    f"the {name} error is {split.mae} after the last epoch: look at the molecules "
                    "of that split, or lower the learning rate"
                )

    def _finish_epoch(self) -> None:
        """Validate, tell, let the learning rate decay, save."""
        job, history = self._job, self._history
        evaluation = None
        if job.validation_loader is not None:
            evaluation = self._evaluate(job.validation_loader)
            self._validation = evaluation.result
        record = history.record(
            float(job.optimizer.param_groups[0]["lr"]),
            None if evaluation is None else evaluation.result.mae,
            None if evaluation is None else evaluation.loss,
        )
        if job.scheduler_interval == "epoch":
            self._decay(1, record)
        history.finish_epoch(record)
        self._monitor.epoch(record)
        warning = self._tables.look()
        if warning is not None:
            self._monitor.message(warning)
        is_last = history.epoch == job.num_epochs
        if self._saver is None or not (is_last or self._saver.is_due(history.epoch)):
            return
        try:
            self._saver.save(history, self._batches, self._average)
        except CheckpointError as error:
            if is_last:
                raise _Failed(str(error)) from error
            # Hours of work must not end because the disk is full for a while.
            self._monitor.message(f"training goes on, but {error}")

    def _evaluate(self, loader: FixedSizeLoader) -> Evaluation:
        return self._evaluator.evaluate(loader, check=self._guard.check)

    def _decay(self, times: int, record: EpochRecord | None = None) -> None:
        scheduler = self._job.scheduler
        if scheduler is None:
            return
        if isinstance(scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau):
            assert record is not None
            watched = record.validation_mae
            scheduler.step(record.loss if watched is None else watched)
        else:
            for _ in range(times):
                scheduler.step()
        self._step.use_learning_rate()

    def _leave(self) -> str:
        """Save an interrupted run; return what to tell the person."""
        where = f"interrupted {self._where()}"
        if self._saver is None:
            return f"{where}; nothing is saved (--checkpoint true saves a run)"
        try:
            self._saver.save(self._history, self._batches, self._average)
        except CheckpointError as error:
            return f"{where}, and not saved: {error}"
        except KeyboardInterrupt:
            return f"{where} and again while saving; an older checkpoint is kept as it was"
        return (
            f"{where} and saved in {self._saver.directory}; go on with --resume true --model_name "
            f"{self._saver.model_name}"
        )

    def _result(self, status: Status, note: str) -> RunResult:
        job, history = self._job, self._history
        epochs = list(history.epochs)
        if history.sums.samples:
            epochs.append(history.record(float(job.optimizer.param_groups[0]["lr"])))
        facts = describe_dataset(job.dataset)
        tables = {} if self._tables.error is None else {"table_error": self._tables.error}
        return RunResult(
            status=status,
            settings=dict(job.settings),
            dataset={**facts, "sizes": facts["splits"]},
            model={
                **job.model,
                "parameters": sum(param.numel() for param in job.regression.parameters()),
                **tables,
            },
            machine=dict(job.machine),
            compile_seconds=self._compile_seconds,
            packing=self._packing,
            epochs=epochs,
            steps=history.steps(),
            validation=self._validation,
            test=self._test,
            note=note,
            counted="molecules",
        )
