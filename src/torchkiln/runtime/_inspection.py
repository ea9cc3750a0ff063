"""What a program does, call by call: its plans, with what is known about the recorded nodes."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, fx

from torchkiln.core import ExecutableError
from torchkiln.runtime.capture._capture import Captured, capture
from torchkiln.runtime.capture._step import StepFunction
from torchkiln.runtime.compile._plan import Plan
from torchkiln.runtime.execute._built import Built
from torchkiln.runtime.execute._executable import GraphExecutable, NativeExecutable
from torchkiln.runtime.memory._prediction import add_up, output_bytes, plan_entries
from torchkiln.runtime.memory._report import MemoryReport
from torchkiln.runtime.memory._timeline import Timeline
from torchkiln.runtime.optim._arrangement import Arrangement
from torchkiln.runtime.passes._costs import flops_of, is_view
from torchkiln.runtime.passes._numbers import graph_digest
from torchkiln.runtime.passes._origins import origins_of


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """What is known about a recorded node.

    Args:
        operator: Such as `aten.addmm`.
        flops: Floating-point operations.
        is_view: Whether it only looks at memory in another way.
    """

    operator: str
    flops: int
    is_view: bool


@dataclass(frozen=True, slots=True)
class EntryView:
    """An entry point: its calls and memory, with the facts about the nodes that they name."""

    timeline: Timeline
    nodes: tuple[NodeFacts, ...]


@dataclass(frozen=True, slots=True)
class ProgramView:
    """All entry points of a program, and the memory that it needs."""

    entries: dict[str, EntryView]
    memory: MemoryReport
    inputs: tuple[str, ...]


def view_program(
    step: StepFunction,
    batch: list[Tensor],
    micro_batch: list[Tensor],
    arrangement: Arrangement | None,
    built: Built | None,
) -> ProgramView:
    """Record the step once more, and look at its calls.

    Native code brings its plan with it. Where there is none, Inductor is asked for one, which takes
    seconds to a minute; nothing is compiled.

    Raises:
        ExecutableError: The recorded step is not the one that was compiled.
    """
    captured = capture(step, micro_batch, arrangement, with_origins=True)
    facts = {name: _facts(captured, name) for name in captured.entries}
    # Planning uses the graphs up.
    outputs = output_bytes(captured)
    timelines = _brought_along(captured, built) or plan_entries(captured, step)
    memory = add_up(step, batch, micro_batch, arrangement, captured, outputs, timelines)
    entries = {name: EntryView(timeline, facts[name]) for name, timeline in timelines.items()}
    forms = tuple(
        f"{form.name}: {str(form.dtype).removeprefix('torch.')}{list(form.shape)}"
        for form in step.signature.forms
    )
    return ProgramView(entries, memory, forms)


def report_memory(
    step: StepFunction,
    batch: list[Tensor],
    micro_batch: list[Tensor],
    arrangement: Arrangement | None,
    built: Built | None,
) -> MemoryReport:
    """Record the step once more, and add up its memory and what stays between steps.

    Inductor does not always plan the same step in the same way, so a step that is compiled is
    judged by the plan of its native code. Any other is planned anew.
    """
    captured = capture(step, micro_batch, arrangement, with_origins=True)
    outputs = output_bytes(captured)
    try:
        timelines = _brought_along(captured, built)
    except ExecutableError:  # other arguments or flags than those that were compiled
        timelines = None
    timelines = timelines or plan_entries(captured, step)
    return add_up(step, batch, micro_batch, arrangement, captured, outputs, timelines)


def _facts(captured: Captured, name: str) -> tuple[NodeFacts, ...]:
    nodes = captured.entries[name].graph.graph.nodes
    return tuple(
        NodeFacts(_operator(str(node.target)), flops_of(node), is_view(node)) for node in nodes
    )


def _operator(target: str) -> str:
    """Return the name of an operator without that of its overload."""
    return target.removesuffix(".default")


def _brought_along(captured: Captured, built: Built | None) -> dict[str, Timeline] | None:
    """Return the timelines that an executable holds; None if it holds none."""
    if built is not None and isinstance(built.executable, GraphExecutable):
        for name, entry in captured.entries.items():
            _check_same(built.executable.digests[name], entry.graph)
    if built is None or not isinstance(built.executable, NativeExecutable):
        return None
    marks = built.executable.marks
    if not marks.keys() >= captured.entries.keys():
        return None
    timelines = {}
    for name, entry in captured.entries.items():
        plan = Plan.from_json(marks[name].plan_text)
        _check_same(plan.digest, entry.graph)
        timelines[name] = Timeline(plan, origins_of(entry.graph))
    return timelines


def _check_same(digest: str, graph: fx.GraphModule) -> None:
    if digest != graph_digest(graph):
        raise ExecutableError(
            "recording the step again gave other operations than those that were compiled, so "
            "times cannot be put down to lines; train() or eval(), flags of the module or its "
            "code changed since: call destroy() on the program to compile what it is now"
        )
