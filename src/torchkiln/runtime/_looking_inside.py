"""`OpenProgram`: what a program tells about itself, and how others watch its calls."""

from __future__ import annotations

import abc
import contextlib
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from torchkiln.core import NotCompiledError, Options
from torchkiln.core._extensions import provided
from torchkiln.core._tracebacks import short_tracebacks
from torchkiln.distributed import Group
from torchkiln.runtime._hooks import build_lock, compile_hooks
from torchkiln.runtime._watching import CallWatcher
from torchkiln.runtime.call._binding import bind
from torchkiln.runtime.call._metadata import ProgramMetadata
from torchkiln.runtime.call._signature import Signature
from torchkiln.runtime.capture._step import StepFunction
from torchkiln.runtime.execute._anchors import tensor_names
from torchkiln.runtime.execute._built import Built
from torchkiln.runtime.execute._executor import Executor
from torchkiln.runtime.memory._report import MemoryReport
from torchkiln.runtime.optim._arrangement import Arrangement

if TYPE_CHECKING:
    from torchkiln.runtime._inspection import ProgramView
    from torchkiln.runtime._staging import StagePlan


class OpenProgram(abc.ABC):
    """The part of `Program` that looks inside; how it is built and run is written there."""

    module: nn.Module
    options: Options
    training: bool
    # Held in every call, and by whoever needs the state to stay as it is meanwhile. A call writes
    # to state of its program, and native code holds Python's lock anyway: nothing is lost.
    turn: threading.RLock
    # The processes that train the same model together with this one; None: it is alone.
    group: Group | None
    _built: Built | None
    _signature: Signature | None
    _executor: Executor | None
    _compilation_time_s: float
    _watcher: CallWatcher | None

    @abc.abstractmethod
    def _begin(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[StepFunction, list[Tensor], list[Tensor]]:
        """Return the step for arguments like these, their tensors, and the first micro-batch."""

    @abc.abstractmethod
    def _arrange_as_compiled(self, step: StepFunction) -> Arrangement | None:
        """Return how the optimiser's state is laid out for the step; None for inference."""

    # -- what was built ---------------------------------------------------------------------

    @property
    def is_compiled(self) -> bool:
        """Whether the program can run without compiling."""
        return self._executor is not None

    @property
    def compilation_time(self) -> float:
        """Seconds that the build took (or loading from the cache)."""
        self._require_compiled()
        return self._compilation_time_s

    @property
    def reassigned_buffers(self) -> list[str]:
        """Names of buffers that forward replaces by new tensors instead of writing to them."""
        return self._require_compiled().metadata.reassigned

    @property
    def metadata(self) -> ProgramMetadata:
        """What is known about the executable."""
        return self._require_compiled().metadata

    @property
    def executable_path(self) -> Path | None:
        """The package file of the native code; None for backends that generate none."""
        return self._require_compiled().package

    @property
    def executor(self) -> Executor:
        """What runs the executable."""
        self._require_compiled()
        assert self._executor is not None
        return self._executor

    @property
    def built(self) -> Built:
        """What the build gave, and how long its phases took."""
        return self._require_compiled()

    def state_dtypes(self) -> dict[str, str]:
        """Return the dtypes of the optimiser state and gradient sums that the executable takes."""
        self._require_compiled()
        assert self._executor is not None
        return self._executor.state_dtypes()

    def _require_compiled(self) -> Built:
        if self._built is None:
            raise NotCompiledError(
                "Model has not been compiled or has been destroyed. Call it, or compile(...), first"
            )
        return self._built

    def _built_for(self, step: StepFunction) -> Built | None:
        """Return what was built, if it was for arguments of these shapes."""
        known = self._signature
        is_same = known is not None and known.forms == step.signature.forms
        return self._built if is_same else None

    # -- what calls need and where their time goes ------------------------------------------

    @short_tracebacks()
    def memory_report(self, *args: Any, **kwargs: Any) -> MemoryReport:
        """Predict the memory that calls with arguments like these need, without running one.

        Records the step. If it is not the one that was compiled, Inductor is asked for its plan,
        which takes seconds to a minute, and no more memory than module and arguments. Nothing is
        compiled, and the program stays as it is.
        """
        from torchkiln.runtime._inspection import report_memory

        with build_lock, compile_hooks(), torch.inference_mode(False):
            step, tensors, micro_batch = self._begin(args, kwargs)
            arrangement = self._arrange_as_compiled(step)
            return report_memory(step, tensors, micro_batch, arrangement, self._built_for(step))

    @short_tracebacks()
    def plan_stages(
        self,
        num_stages: int,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
        *,
        measured: Mapping[str, float] | None = None,
        limit_bytes: int | None = None,
    ) -> StagePlan:
        """Return where to cut the program into stages of equal time, and what each then needs.

        Nothing is compiled or run, and the program stays as it is.

        Args:
            num_stages: How many stages there shall be.
            args: Arguments of a call.
            kwargs: Arguments by name.
            measured: Time of each module without those inside it, by name; None: estimated.
            limit_bytes: What a stage may use; more time is accepted to stay below.

        Raises:
            OptionsError: if there are not as many places to cut at.
            CaptureError: if the step cannot be cut into stages.
        """
        from torchkiln.runtime._staging import plan_stages

        with build_lock, compile_hooks(), torch.inference_mode(False):
            step, _, micro_batch = self._begin(args, dict(kwargs or {}))
            arrangement = self._arrange_as_compiled(step)
            return plan_stages(
                step,
                micro_batch,
                arrangement,
                num_stages,
                measured=measured,
                limit_bytes=limit_bytes,
            )

    @short_tracebacks()
    def view(self, *args: Any, **kwargs: Any) -> ProgramView:
        """Return what calls with arguments like these do, call by call, and what is known of each.

        Nothing is compiled or run, and the program stays as it is. A program that is compiled tells
        its own plan; of another one Inductor is asked, which takes seconds to a minute.
        """
        from torchkiln.runtime._inspection import view_program

        with build_lock, compile_hooks(), torch.inference_mode(False):
            step, tensors, micro_batch = self._begin(args, kwargs)
            arrangement = self._arrange_as_compiled(step)
            return view_program(step, tensors, micro_batch, arrangement, self._built_for(step))

    @short_tracebacks()
    def profile(self, *args: Any, **kwargs: Any) -> Any:
        """Run some steps on these arguments, and return where their time and memory goes.

        Weights, optimiser state and random numbers are as before when it returns. The result is a
        `torchkiln.profiling.GraphProfile`, which `torchkiln.profiling.write_report` turns into a
        page. A program that is not compiled yet is compiled first. Calls in other threads wait
        until the steps are over. Of several processes that train together any may do this: nothing
        is exchanged in steps that are undone. Those that go on wait in their next update.
        """
        if self.group is not None and not self.is_compiled:
            raise NotCompiledError(
                "a program that several processes train is compiled by all of them together; call "
                "it, or compile(...), on all ranks before profile() on some"
            )
        return provided("profile")(self, args, kwargs)

    @contextlib.contextmanager
    def watched(self, watcher: CallWatcher) -> Iterator[None]:
        """Let `watcher` make the calls of the program meanwhile; who watched before waits."""
        before, self._watcher = self._watcher, watcher
        try:
            yield
        finally:
            self._watcher = before
            if before is not None:
                before.forget_the_loop()

    def finish_profile(self) -> None:
        """Write the report that `profile_dir` asks for, from the calls so far, if it is missing."""
        with self.turn:
            if self._watcher is not None:
                watcher, self._watcher = self._watcher, None
                watcher.finish()

    # -- what happened in the latest call ---------------------------------------------------

    @short_tracebacks()
    def anchored(self, name: str) -> Tensor:
        """Return the anchored tensor `name` of the latest call."""
        if name not in self.options.anchors:
            raise KeyError(
                f"{name!r} is not anchored; anchored tensors: {sorted(self.options.anchors)}"
            )
        self._require_compiled()
        assert self._executor is not None
        return self._executor.anchored(name)

    def tensor_names(self) -> list[str]:
        """Return the names of internal tensors, among them those that can be anchored."""
        metadata = self._require_compiled().metadata
        assert self._signature is not None
        updated = metadata.updated if self.training else None
        return tensor_names(self._signature, bind(self.module), updated)

    def perf_counters(self) -> dict[str, list[list[float]]]:
        """Return when inputs and outputs of the latest call's micro-batches moved, in seconds.

        With generated data nothing moves: there is an empty list for each of them.
        """
        if self._executor is None:
            keys = ("input", "input_complete", "output", "output_complete")
            return {key: [[]] for key in keys}
        counters = self._executor.perf_counters()
        if self.options.synthetic_data:
            return {key: [[] for _ in times] for key, times in counters.items()}
        return counters
