"""`Trainer`: your own module and loader on the training loop."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import Any, Literal, final

import torch
from torch import nn
from torch.optim.lr_scheduler import LRScheduler

from torchkiln.checkpoints import CheckpointStore
from torchkiln.core import Options, OptionsError
from torchkiln.core._room import check_room
from torchkiln.core._tracebacks import short_tracebacks
from torchkiln.report import MonitorGroup, RunMonitor, RunResult, make_monitor, publish
from torchkiln.report._monitors import Progress
from torchkiln.training._averaging import WeightAverage
from torchkiln.training._batches import make_batches
from torchkiln.training._checkpoint_plan import CheckpointPlan, Words
from torchkiln.training._history import History
from torchkiln.training._identity import identify_optimizer, identify_options, to_kept
from torchkiln.training._loop import TrainingLoop
from torchkiln.training._machine import describe_machine
from torchkiln.training._module_task import ModuleTask
from torchkiln.training._outcome import Outcome
from torchkiln.training._ranks import Ranks
from torchkiln.training._restarts import goes_on
from torchkiln.training._saving import RunSaver, RunState
from torchkiln.training._schedule import (
    Interval,
    RateSchedule,
    Schedule,
    TorchSchedule,
    check_interval,
    check_scheduler,
)
from torchkiln.training._shares import refuse_undivided, warn_if_undivided
from torchkiln.training._update_size import UpdateSize

_FOLDER = "checkpoint"


@final
@dataclass(frozen=True, slots=True, eq=False)
class Trainer:
    """What to train, on what, for how long, and what to keep.

    Args:
        module: Its forward takes a batch (the parts of a tuple or list, the names of a dict, or
            anything else whole) and returns the loss: alone, last, or as "loss" of a dict.
        loader: Batches of one size, made for `options`: `torchkiln.DataLoader`, `FixedSizeLoader`,
            or anything that begins anew for each epoch and has a length.
        optimizer: An optimiser of the parameters of `module`.
        num_epochs: How many epochs the run has in total, with those before it was resumed.
        options: The options of the training program.
        schedule: How the learning rate changes: a scheduler of torch on `optimizer`, newly made
            also on resume, or a function from the number of an update, from 0, to its rate.
        schedule_interval: Step a scheduler of torch after each "epoch" or each "update".
        average: An average of the weights, which validation then uses; None: there is none.
        validation_loader: Held-out batches of one size, one mini-batch for each call; their mean
            loss is reported after each epoch.
        directory: Gets the checkpoint, the plots, `results.json` and the page of the run; None:
            nothing is written.
        resume: "auto" continues what is in `directory`, or begins if there is nothing; True
            requires a run to continue, False requires that there is none.
        save_every_epochs: Save after so many epochs. The last epoch and an interrupted one are
            always saved.
        save_every_steps: Save also within epochs, after so many calls; None: never.
        fixed: Anything else that a resumed run must have in common with this one (names of data,
            seeds), in JSON types.
        name: Name of the run in the report; default: the name of the module's class.
        counted: What a sample is, in the plural: "molecules", "images".
        monitors: Objects that are told what happens, besides the terminal; with several processes,
            those of rank 0.
        progress: "auto" draws bars on a terminal and writes lines to anything else.

    With several processes (`torchrun`), each makes the same trainer, with
    `options = torchkiln.distributed.start().options(options)` for loaders and trainer; rank 0 tells
    and writes.

    Raises:
        OptionsError: Something does not fit; the message says what.
    """

    module: nn.Module
    loader: Iterable[Any]
    _: KW_ONLY
    optimizer: torch.optim.Optimizer
    num_epochs: int
    options: Options = field(default_factory=Options)
    schedule: LRScheduler | Callable[[int], float] | None = None
    schedule_interval: Interval = "epoch"
    average: WeightAverage | None = None
    validation_loader: Iterable[Any] | None = None
    directory: str | os.PathLike[str] | None = None
    resume: bool | Literal["auto"] = "auto"
    save_every_epochs: int = 1
    save_every_steps: int | None = None
    fixed: Mapping[str, Any] = field(default_factory=dict)
    name: str | None = None
    counted: str = "samples"
    monitors: Sequence[RunMonitor] = ()
    progress: Progress = "auto"

    def __post_init__(self) -> None:
        if not isinstance(self.module, nn.Module):
            raise OptionsError(
                "module must be a torch.nn.Module whose forward returns the loss, got "
                f"{type(self.module).__name__}; the trainer makes programs of it itself"
            )
        if self.num_epochs < 0:
            raise OptionsError(f"num_epochs must not be negative, got {self.num_epochs}")
        if self.resume not in (True, False, "auto"):
            raise OptionsError(f'resume must be True, False or "auto", got {self.resume!r}')
        if self.resume is True and self.directory is None:
            raise OptionsError("resume=True needs the directory of the run to continue")
        check_interval(self.schedule_interval)
        if isinstance(self.schedule, LRScheduler):
            check_scheduler(self.schedule, self.optimizer, self.schedule_interval)
        self._check_average()
        self._plan(resume=False)
        Ranks.of(self.options)
        for name in ("loader", "validation_loader"):
            refuse_undivided(name, getattr(self, name), self.options)

    def _check_average(self) -> None:
        if self.average is None:
            return
        if self.options.is_divided:
            raise OptionsError(
                "an average of the weights follows the whole model, which no process has while "
                "it is divided into stages; leave out average, or pipeline"
            )
        if self.average.source is not self.module:
            raise OptionsError("average must follow the module that is trained")
        if self.average.updates_per_call != self.options.device_iterations:
            raise OptionsError(
                f"average has updates_per_call={self.average.updates_per_call}, but a call makes "
                f"{self.options.device_iterations} updates (options.device_iterations); make it "
                "with the same number"
            )

    @short_tracebacks()
    def fit(self) -> RunResult:
        """Train until the epochs are done, a loss is not finite, or the person stops it.

        The first Ctrl-C (or SIGTERM) ends the run after the present step, and saves it; a second
        one is a `KeyboardInterrupt`. `exit_code(result)` says it to a shell.

        Raises:
            OptionsError: Nothing can be written to `directory`.
            CheckpointError: What is in `directory` was made with other settings, or is damaged, or
                is used by another process.
            LoaderError: The loader cannot be read again in the same order.
            StoreError: The report could not be written.
        """
        ranks = Ranks.of(self.options)
        if self.directory is not None:  # before the first epoch, not after the last
            where = Path(self.directory)
            ranks.first_does(
                "look at the directory",
                lambda: check_room(where, "the run", "choose another directory"),
            )
        state = self._state()
        plan = self._plan(resume=ranks.first_does("look for a checkpoint", self._resumes))
        with contextlib.ExitStack() as stack:
            for loader in (self.loader, self.validation_loader):
                end = getattr(loader, "terminate", None)
                if end is not None:
                    stack.callback(end)
            saver, history = None, History()
            if plan is not None:
                saver = self._saver(plan, state, ranks)
                history = stack.enter_context(saver.opened())
            monitor = self._monitor() if ranks.is_first else MonitorGroup([])
            stack.callback(monitor.close)
            outcome = self._run(state, saver, history, monitor, ranks)
            if outcome.note:
                monitor.message(outcome.note)
            result = self._result(outcome)
            monitor.result(result)
        ranks.first_does("write the report", lambda: self._publish(result))
        return result

    def _publish(self, result: RunResult) -> None:
        if self.directory is not None:
            publish(result, Path(self.directory))

    def _run(
        self,
        state: RunState,
        saver: RunSaver | None,
        history: History,
        monitor: RunMonitor,
        ranks: Ranks,
    ) -> Outcome:
        evaluated = self.module if self.average is None else self.average.module
        # One process draws the bars of all.
        shows = self.options.show_progress and ranks.is_first
        options = self.options.replace(show_progress=shows)
        task = ModuleTask(
            self.module, options, self.optimizer, evaluated, self.validation_loader, ranks
        )
        words = Words(counted=self.counted)
        warn_if_undivided(self.loader, ranks)
        loop = TrainingLoop(task, state, saver, history, monitor, words, ranks)
        return loop.run(self.num_epochs)

    def _resumes(self) -> bool:
        """Whether there is something to continue; asked of rank 0."""
        if self.directory is None:
            return False
        folder = Path(self.directory) / _FOLDER
        if self.resume == "auto":
            return CheckpointStore(folder).exists()
        return self.resume or goes_on(folder)

    def _plan(self, *, resume: bool) -> CheckpointPlan | None:
        if self.directory is None:
            return None
        return CheckpointPlan(
            root=Path(self.directory),
            model_name=_FOLDER,
            every_epochs=self.save_every_epochs,
            every_steps=self.save_every_steps,
            resume=resume,
        )

    def _state(self) -> RunState:
        return RunState(
            module=self.module,
            network=self.module,
            optimizer=self.optimizer,
            batches=make_batches(self.loader),
            schedule=self._schedule(),
            average=self.average,
            averaged=None if self.average is None else self.average.module,
        )

    def _schedule(self) -> Schedule | None:
        if isinstance(self.schedule, LRScheduler):
            return TorchSchedule(self.schedule, self.schedule_interval)
        return None if self.schedule is None else RateSchedule(self.optimizer, self.schedule)

    def _saver(self, plan: CheckpointPlan, state: RunState, ranks: Ranks) -> RunSaver:
        weights = self.module.state_dict()
        identity = {
            "module": type(self.module).__name__,
            "weights": {name: f"{t.dtype} {list(t.shape)}" for name, t in weights.items()},
            "optimizer": identify_optimizer(self.optimizer),
            "schedule": None if state.schedule is None else state.schedule.identity(),
            "average_decay": None if self.average is None else self.average.decay,
            "options": identify_options(self.options),
            "loader": type(self.loader).__name__,
            "fixed": to_kept("fixed", self.fixed),
        }
        return RunSaver(
            plan,
            state,
            identity=identity,
            facts={"name": self._run_name},
            update=UpdateSize.of(self.options),
            ranks=ranks,
        )

    @property
    def _run_name(self) -> str:
        return self.name or type(self.module).__name__

    def _monitor(self) -> MonitorGroup:
        directory = Path(self.directory or ".")
        terminal = make_monitor(directory, counted=self.counted, progress=self.progress)
        return MonitorGroup([*terminal.monitors, *self.monitors])

    def _result(self, outcome: Outcome) -> RunResult:
        settings = {
            "num_epochs": self.num_epochs,
            "average_decay": None if self.average is None else self.average.decay,
            "optimizer": identify_optimizer(self.optimizer),
            "options": self.options.to_dict(),
            **self.fixed,
        }
        parameters = sum(parameter.numel() for parameter in self.module.parameters())
        return RunResult(
            status=outcome.status,
            settings=settings,
            dataset={"name": self._run_name},
            model={"name": type(self.module).__name__, "parameters": parameters},
            machine=describe_machine(),
            compile_seconds=outcome.compile_seconds,
            epochs=outcome.epochs,
            steps=outcome.history.steps(),
            note=outcome.note,
            counted=self.counted,
            world=outcome.world,
        )
