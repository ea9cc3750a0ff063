"""The training loop: epochs of steps, validation, checkpoints, interrupts; written once."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from typing import Any, final

from torchkiln.checkpoints import find_non_finite, random_state, set_random_state
from torchkiln.core import (
    CheckpointError,
    DistributedError,
    NonFiniteError,
    TorchkilnError,
    instant,
    span,
)
from torchkiln.core._beacon import tell_training, waiting_for_data
from torchkiln.report import RunMonitor, StepRecord
from torchkiln.report._record import Status
from torchkiln.runtime import gather_weights
from torchkiln.training._checkpoint_plan import Words
from torchkiln.training._core_watch import CoreWatch
from torchkiln.training._history import History
from torchkiln.training._interrupt import Interrupted
from torchkiln.training._outcome import Outcome
from torchkiln.training._rank_figures import RankFigures
from torchkiln.training._ranks import Ranks
from torchkiln.training._rate import RateCounter
from torchkiln.training._saving import RunSaver, RunState
from torchkiln.training._stopping import Stopping
from torchkiln.training._task import BadLoss, Place, StepOutcome, Task, Validation
from torchkiln.training._weights_digest import digest_of_weights
from torchkiln.training._whereabouts import Whereabouts


class _Failed(Exception):  # noqa: N818 - caught in this file
    """Training cannot go on."""

    def __init__(self, error: TorchkilnError) -> None:
        super().__init__(str(error))
        self.error = error


@final
class TrainingLoop:
    """One run from start to end; its methods are in the order in which they are called.

    Args:
        task: What is trained.
        state: What training changes.
        saver: Saves the run; None: nobody does.
        history: What there is of the run already.
        monitor: Is told what happens.
        words: For messages.
        ranks: The processes that train together; None: there is one.
    """

    def __init__(
        self,
        task: Task,
        state: RunState,
        saver: RunSaver | None,
        history: History,
        monitor: RunMonitor,
        words: Words,
        ranks: Ranks | None = None,
    ) -> None:
        self._task = task
        self._state = state
        self._saver = saver
        self._history = history
        self._monitor = monitor
        self._words = words
        self._ranks = ranks or Ranks()
        self._stopping = Stopping(self._ranks)
        self._buffers = state.buffers(self._ranks)
        self._figures = RankFigures(self._ranks)
        self._cores = CoreWatch(is_alone=self._ranks.size == 1)
        self._rate = RateCounter(words.counted)
        self._num_epochs = 0
        self._at = Whereabouts(history, state.batches, words)
        self._compile_seconds: float | None = None
        self._can_train = False

    def run(self, num_epochs: int) -> Outcome:
        """Train until the epochs are done, a loss is not finite, or the person stops it.

        The first Ctrl-C (or SIGTERM) ends the run after the present step: it is saved, if there is
        a saver, and the outcome says "interrupted". A second one, or one while programs are
        compiled, is a `KeyboardInterrupt`. Several processes end alike, after the same step.

        Args:
            num_epochs: In total, those of a resumed checkpoint included.

        Raises:
            DistributedError: Another process was lost, or its weights are others; nothing is saved.
        """
        history, self._num_epochs = self._history, num_epochs
        self._at.num_epochs = num_epochs
        if self._saver is not None and self._saver.resumes:
            self._monitor.message(self._at.start(self._saver.directory))
            self._saver.restore_random_state()
        batches = self._compile()
        self._look_at_cores()
        self._monitor.start(self._num_epochs, history.epoch)
        with self._stopping.guard:
            try:
                self._train(batches)
            except Interrupted:
                instant("training", "interrupted")
                return self._outcome("interrupted", self._leave())
            except _Failed as failure:
                instant("training", "failed")
                self._gather_weights()
                return self._outcome("failed", str(failure), failure.error)
            except DistributedError as error:
                raise DistributedError(f"{error}; {self._describe_loss()}") from error
            self._buffers.settle()
        return self._outcome("finished")

    def _look_at_cores(self) -> None:
        told = self._cores.look()
        if told is not None:
            self._monitor.message(told)

    def _outcome(
        self, status: Status, note: str = "", error: TorchkilnError | None = None
    ) -> Outcome:
        epochs = list(self._history.epochs)
        if self._history.sums.samples:
            epochs.append(self._history.record(self._learning_rate))
        world = self._figures.gather()
        return Outcome(status, note, self._history, epochs, self._compile_seconds, error, world)

    def _describe_loss(self) -> str:
        """Say how far a run came that processes could not end together."""
        is_saved = self._saver is not None and self._saver.has_saved
        return self._at.end(self._saver.directory if self._saver and is_saved else None)

    def _compile(self) -> Iterator[Any] | None:
        """Build the programs; return the batches of the first epoch if it has any left."""
        epoch = self._history.epoch
        first: Any = None
        batches: Iterator[Any] | None = None
        if epoch < self._num_epochs and not self._is_trained(epoch):
            batches = self._state.batches.read(epoch)
            with span("training", "wait for data"):
                first = next(batches, None)  # none: a loader had fewer batches than its length
            batches = batches if first is None else itertools.chain([first], batches)
        now = random_state()
        seconds = self._task.compile(first)
        if seconds is not None:
            self._compile_seconds = (self._compile_seconds or 0.0) + seconds
        self._can_train = first is not None
        if self._saver is not None and self._saver.resumes:
            # Making programs may seed torch: a resumed run goes on with its own numbers.
            set_random_state(now)
            self._gather_weights()
            self._saver.restore_buffers()
        return batches

    def _read_epoch(self) -> Iterator[Any]:
        """Return the batches of an epoch that begins."""
        if not self._can_train:
            # A run that goes on in a validation makes what trains only now. That takes buffers of
            # rank 0, and each process must get its own back.
            batches = self._compile()
            if batches is not None:
                return batches
        return self._state.batches.read(self._history.epoch)

    def _is_trained(self, epoch: int) -> bool:
        """Whether all batches of the epoch were used, as after an interrupt in its validation."""
        return self._state.batches.position.epoch > epoch

    def _train(self, batches: Iterator[Any] | None) -> None:
        history = self._history
        while history.epoch < self._num_epochs:
            with span("training", f"epoch {history.epoch + 1}"):
                if batches is not None or not self._is_trained(history.epoch):
                    self._train_epoch(batches or self._read_epoch())
                    batches = None
                self._finish_epoch()
        self._ranks.is_at("the final predictions")
        with span("validation", "final predictions"), self._buffers.averaged():
            problem = self._task.finish(self._stopping)
        self._require_sound(problem)

    def _train_epoch(self, batches: Iterator[Any]) -> None:
        history, average = self._history, self._state.average
        num_steps: int | None = None
        clock = time.perf_counter()
        self._rate.begin()
        self._figures.begin_epoch()
        while True:
            # Workers get Ctrl-C, too, and may fail before we look.
            with span("training", "wait for data"), self._stopping.excusing(), waiting_for_data:
                batch = next(batches, _END)
            if batch is _END:
                self._rate.end()
                return
            if num_steps is None:
                num_steps = self._state.batches.num_batches(history.epoch)
                # Loaders of Torchkiln have compared it; others may not know of each other.
                self._ranks.require_same(
                    f"the number of batches of epoch {history.epoch + 1}",
                    num_steps,
                    "let every process read equally many",
                )
            place = self._at.place(num_steps)
            with span("training", "step"), self._figures.step():
                self._schedule_before()
                outcome = self._task.step(batch, place, lambda: self._stopping.is_wanted)
                self._require_finite(outcome, batch, place)
                if average is not None:
                    average.update()
                self._schedule_after(len(outcome.update_losses))
            seconds, clock = time.perf_counter() - clock, time.perf_counter()
            seconds -= outcome.overhead_s
            with span("report", "step"):
                history.take(outcome, seconds)
                self._figures.take(outcome.own_samples, seconds)
                tell_training(outcome.own_samples, outcome.loss, place.epoch + 1, place.num_epochs)
                self._monitor.step(_record(outcome, place, seconds))
                self._rate.take(outcome.own_samples)
                self._look_at_cores()
            if self._saver is not None and self._saver.is_due_within(history):
                self._save(self._saver)
            self._stopping.check_after_step(outcome.is_stop_wanted)

    def _schedule_before(self) -> None:
        schedule = self._state.schedule
        if schedule is not None and schedule.before_step(self._history.updates):
            self._task.use_learning_rate()

    def _schedule_after(self, num_updates: int) -> None:
        schedule = self._state.schedule
        if schedule is not None and schedule.after_step(num_updates):
            self._task.use_learning_rate()

    def _require_finite(self, outcome: StepOutcome, batch: Any, place: Place) -> None:
        bad = BadLoss.find(outcome.losses, self._task.folding)
        if bad is None:
            return
        kept = ""
        if self._saver is not None:
            kept = f"; the last good checkpoint is kept in {self._saver.directory}"
        is_own = bad.rank == self._ranks.copy
        # Only who has the batch can say what is in it.
        own = self._task.explain(bad, batch, place) if is_own else ""
        told = self._ranks.of_copies(self._ranks.gather(own))
        raise _Failed(NonFiniteError(f"{told[bad.rank]}{kept}"))

    def _finish_epoch(self) -> None:
        """Validate, tell, let the learning rate decay, save."""
        history, schedule = self._history, self._state.schedule
        epoch = history.epoch + 1
        self._ranks.is_at(f"the end of epoch {epoch}")
        self._gather_weights()
        self._ranks.require_same(
            f"the weights after epoch {epoch}",
            digest_of_weights(self._state.module) if self._ranks.size > 1 else "",
            "continue from the last checkpoint; forward must not change weights itself, and "
            "gradients must be added up with the same reduction_order everywhere",
        )
        with span("validation", "validation"), self._buffers.averaged():
            validation: Validation = self._task.validate(history.totals, self._stopping)
            if self._state.best is not None:
                self._state.best.offer(validation.error, history.epoch)
        record = history.record(self._learning_rate, validation)
        if schedule is not None and schedule.after_epoch(record):
            self._task.use_learning_rate()
        history.finish_epoch(record)
        with span("report", "epoch"):
            self._monitor.epoch(record)
            if validation.warning is not None:
                self._monitor.message(validation.warning)
        is_last = history.epoch == self._num_epochs
        if self._saver is not None and (is_last or self._saver.is_due(history)):
            self._save(self._saver, is_last=is_last)

    @property
    def _learning_rate(self) -> float:
        """That of the first group of parameters."""
        return float(self._state.optimizer.param_groups[0]["lr"])

    def _gather_weights(self) -> None:
        """Let every process have the whole model, if it is divided into stages."""
        if self._ranks.num_stages > 1:
            gather_weights(self._state.module)

    def _save(self, saver: RunSaver, *, is_last: bool = False) -> None:
        self._gather_weights()
        try:
            saver.save(self._history)
        except CheckpointError as error:
            if is_last:
                raise _Failed(error) from error
            # Hours of work must not end because the disk is full for a while.
            self._monitor.message(f"training goes on, but {error}")

    def _require_sound(self, problem: str | None) -> None:
        """Raise if the last update spoiled the weights: no later loss can show it."""
        # Weights are the same in all processes, buffers are not.
        found = self._ranks.gather(find_non_finite(self._state.module.state_dict()))
        spoiled = next((name for name in found if name is not None), None)
        if spoiled is not None:
            problem = f"weight {spoiled!r} holds NaN or infinity: lower {self._words.learning_rate}"
        if problem is not None:
            raise _Failed(NonFiniteError(problem))

    def _leave(self) -> str:
        """Save an interrupted run; return what to tell the person."""
        where = f"interrupted {self._at}"
        self._gather_weights()
        if self._saver is None:
            return f"{where}; nothing is saved ({self._words.save})"
        try:
            self._saver.save(self._history)
        except CheckpointError as error:
            return f"{where}, and not saved: {error}"
        except KeyboardInterrupt:
            if self._ranks.size > 1:
                raise  # the others cannot know
            return f"{where} and again while saving; an older checkpoint is kept as it was"
        return f"{where} and saved in {self._saver.directory}; go on with {self._words.go_on_here}"


_END = object()


def _record(outcome: StepOutcome, place: Place, seconds: float) -> StepRecord:
    return StepRecord(
        epoch=place.epoch,
        step=place.step,
        steps_in_epoch=place.num_steps,
        loss=outcome.loss,
        samples=outcome.samples,
        seconds=seconds,
        figures=outcome.figures,
    )
