"""Making a `GraphProfile`: run some steps, look at the plan, and put both together."""

from __future__ import annotations

import dataclasses
import datetime
import platform
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

import torchkiln
from torchkiln.core import Options
from torchkiln.core._machine import processor_name
from torchkiln.core._other_processes import OtherLoad, Reading
from torchkiln.core._threads import usable_cores
from torchkiln.profiling.graph._attribution import (
    Lines,
    attribute_call,
    calculating_calls,
    longest_loops,
)
from torchkiln.profiling.graph._insights import find_insights
from torchkiln.profiling.graph._liveness import describe_liveness
from torchkiln.profiling.graph._peaks import measured_peaks
from torchkiln.profiling.graph._recorder import CallRecorder, MeasuredCall, quiet_half
from torchkiln.profiling.graph._values import Call, GraphProfile, Peaks, Row, Times
from torchkiln.runtime import Program
from torchkiln.runtime._inspection import ProgramView
from torchkiln.torch_internals._fx import map_tensors

# A profile is made of this many calls at least, and of this many seconds.
_LEAST_CALLS = 10
_SECONDS = 1.0
_MOST_CALLS = 500
_WARM_CALLS = 3


def profile_program(
    program: Program,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    *,
    seconds: float = _SECONDS,
) -> GraphProfile:
    """Run a program on these arguments for a while, and return where time and memory go.

    Weights, optimiser state, buffers, random numbers and arguments are as before when it returns.
    Calls in other threads wait until the steps are over.

    Args:
        program: Compiled first if it is not.
        args: Arguments of a call.
        kwargs: Arguments by name.
        seconds: How long to run; at least ten calls are made.

    Raises:
        ExecutableError: The program is plain Python (backend eager), or is not what was compiled.
    """
    # A step that another thread makes meanwhile would be measured as one of ours, and undone.
    with program.turn:
        if not program.is_compiled:
            program.compile(*args, **kwargs)
        view = program.view(*args, **kwargs)
        recorder = CallRecorder()
        restore = program.executor.snapshot()
        args, kwargs = _private_copies(program, args, dict(kwargs))
        before = Reading()
        try:
            with program.watched(_Plainly()):
                for _ in range(_WARM_CALLS):
                    program(*args, **kwargs)
            with program.watched(recorder):
                end = time.perf_counter() + seconds
                while len(recorder.calls) < _LEAST_CALLS or (
                    time.perf_counter() < end and len(recorder.calls) < _MOST_CALLS
                ):
                    program(*args, **kwargs)
                    recorder.forget_the_loop()
        finally:
            restore()
        load, facts = Reading().load_since(before), facts_of(program)
    return make_profile(facts, view, recorder.calls, load)


def plan_program(
    program: Program, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> GraphProfile:
    """Return the calls and the memory of a program without running or compiling it.

    So a step that is larger than the memory has a profile, too; it has no times.
    """
    view = program.view(*args, **kwargs)
    return make_profile(facts_of(program), view, [], None)


class _Plainly:
    """Runs calls as if nobody watched."""

    def call(self, program: Program, run: Any) -> Any:
        return run()

    def forget_the_loop(self) -> None:
        pass

    def finish(self) -> None:
        pass


def _private_copies(
    program: Program, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return arguments that forward may write to, if it does."""
    if not program.metadata.mutated_inputs:
        return args, kwargs
    copied: tuple[Any, ...] = map_tensors(torch.clone, args)
    named: dict[str, Any] = map_tensors(torch.clone, kwargs)
    return copied, named


@dataclass(frozen=True, slots=True)
class ProgramFacts:
    """What a profile tells of a program besides its calls; it does not keep the program alive."""

    folder: str
    training: bool
    options: Options
    model: str
    num_parameters: int
    kinds: Mapping[str, str]
    compile_seconds: Mapping[str, float]
    from_cache: bool


def facts_of(program: Program) -> ProgramFacts:
    """Return what a profile tells of a program as it is now."""
    module = program.module
    return ProgramFacts(
        folder=folder_name(program),
        training=program.training,
        options=program.options,
        model=type(module).__name__,
        num_parameters=sum(p.numel() for p in module.parameters()),
        kinds={name: type(part).__name__ for name, part in module.named_modules()},
        compile_seconds=program.built.phases if program.is_compiled else {},
        from_cache=program.is_compiled and not program.built.compiled,
    )


def make_profile(
    program: ProgramFacts,
    view: ProgramView,
    measured: list[MeasuredCall],
    others: OtherLoad | None,
    *,
    limit_bytes: int | None = None,
) -> GraphProfile:
    """Put together what was measured and what is known of the plan.

    Args:
        program: What is known of the program.
        view: Its calls.
        measured: Calls of the program; none if it did not run.
        others: What other processes did meanwhile.
        limit_bytes: Memory that the program may use; None: what is free on this machine.
    """
    used = quiet_half(measured)
    steps = steps_per_call(program)
    lines = Lines()
    calls, rows = _attribute(program, view, used, steps, lines)
    options = program.options
    profile = GraphProfile(
        name=program.folder,
        training=program.training,
        model=program.model,
        num_parameters=program.num_parameters,
        backend=options.backend.value,
        options=_options(options),
        inputs=view.inputs,
        steps_per_call=steps,
        micro_batches_per_step=options.micro_batches_per_update if program.training else 1,
        versions={
            "torchkiln": torchkiln.__version__,
            "torch": torch.__version__,
            "Python": platform.python_version(),
        },
        machine=_machine(),
        compile_seconds=dict(program.compile_seconds),
        from_cache=program.from_cache,
        created=datetime.datetime.now().astimezone().isoformat(timespec="seconds"),
        times=_times(measured, used, steps) if measured else None,
        peaks=_peaks(calls) if measured else None,
        lines=(),
        calls=tuple(calls),
        rows=tuple(rows),
        liveness=describe_liveness(view, lines, limit_bytes),
    )
    profile = dataclasses.replace(profile, lines=tuple(lines.entries))
    told = find_insights(profile, view.memory, options, others, sleeping=_sleeping(measured))
    return dataclasses.replace(profile, insights=told)


def steps_per_call(program: ProgramFacts) -> int:
    """Return the weight updates of a call, or the micro-batches of one that does not train."""
    options = program.options
    if program.training:
        return options.device_iterations
    return options.device_iterations * options.micro_batches_per_update


def folder_name(program: Program) -> str:
    """Return the name of the folder of a program's report."""
    default = {"training step": "training", "inference": "inference"}
    name = default.get(program.name, program.name)
    if program.options.process_id:
        # Each of several processes has a step of its own.
        name = f"{name}-rank{program.options.process_id}"
    return "".join(c if c.isalnum() or c in "-_." else "_" for c in name).strip(".") or "program"


def _attribute(
    program: ProgramFacts, view: ProgramView, used: list[MeasuredCall], steps: int, lines: Lines
) -> tuple[list[Call], list[Row]]:
    calls: list[Call] = []
    rows: list[Row] = []
    for name, entry in view.entries.items():
        planned = entry.timeline.plan.calls
        times: np.ndarray | None = None
        runs = _runs(program, name)
        if used:
            times = np.mean([call.entries[name] for call in used], axis=0) / 1e3 / steps
            runs = float(np.mean([call.runs[name] for call in used])) / steps
        owners, most = calculating_calls(planned), longest_loops(planned)
        for place, call in enumerate(planned):
            microseconds = None if times is None else float(times[place])
            elsewhere = {number for number in call.nodes if owners.get(number, place) != place}
            made, shares = attribute_call(
                len(calls),
                name,
                entry,
                call,
                microseconds,
                runs,
                program.kinds,
                lines,
                elsewhere,
                most,
            )
            calls.append(made)
            rows.extend(shares)
    return calls, rows


def _peaks(calls: list[Call]) -> Peaks:
    """Return what the machine can do: a call that did more on a busy machine has shown it, too."""
    reached = max((c.flops * c.runs / c.us / 1e3 for c in calls if c.us), default=0.0)
    peaks = measured_peaks()
    return Peaks(max(peaks.gflops_per_s, reached), peaks.gbytes_per_s)


def _runs(program: ProgramFacts, entry: str) -> float:
    """Return how often an entry runs in a step."""
    return float(program.options.micro_batches_per_update) if entry == "accumulate" else 1.0


def _times(measured: list[MeasuredCall], used: list[MeasuredCall], steps: int) -> Times:
    def mean(values: list[float]) -> float:
        return float(np.mean(values)) / 1e3 / steps

    wall = mean([call.wall_ns for call in used])
    inside = mean([call.executable_ns for call in used])
    # The loop as a whole: quiet calls say nothing about a loader that is slow at times.
    loops = [call for call in measured if call.between_ns is not None]
    waiting = between = None
    if loops:
        waiting = mean([call.waiting_ns or 0 for call in loops])
        between = mean([call.between_ns or 0 for call in loops])
    return Times(
        step_us=wall,
        executable_us=inside,
        outside_us=wall - inside,
        waiting_us=waiting,
        other_us=None if between is None or waiting is None else between - waiting,
        steps_measured=len(measured) * steps,
        steps_used=len(used) * steps,
        slowest_us=max(call.wall_ns for call in measured) / 1e3 / steps,
    )


def _sleeping(measured: list[MeasuredCall]) -> float | None:
    """Return the share of the time between calls in which their thread did not compute."""
    between = sum(call.between_ns or 0 for call in measured)
    computing = sum(call.between_computing_ns or 0 for call in measured)
    return max(0.0, 1 - computing / between) if between else None


def _options(options: Options) -> dict[str, str]:
    """Return what differs from the defaults."""
    default = Options().to_dict()
    hidden = ("recorded", "profile_dir", "show_progress")
    return {
        name: str(value)
        for name, value in options.to_dict().items()
        if value != default[name] and name not in hidden
    }


def _machine() -> dict[str, str]:
    import psutil

    return {
        "processor": processor_name(),
        "cores": str(len(usable_cores())),
        "threads": str(torch.get_num_threads()),
        "memory": f"{psutil.virtual_memory().total / 2**30:.1f} GB",
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "system": platform.platform(),
    }
