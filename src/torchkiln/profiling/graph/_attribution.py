"""Whose time is it: the time of each call, divided among the lines, modules and parameters.

A call that computes several recorded operations is divided by the work of each: the elements that
its loop goes through. Operations of forward that a loop of backward repeats count as backward.
"""

from __future__ import annotations

import linecache
import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from torchkiln.profiling.graph._values import Call, Row, SourceLine
from torchkiln.runtime._inspection import EntryView
from torchkiln.runtime.compile._plan import PlannedCall, PlannedPart
from torchkiln.runtime.passes._origins import Origin, Phase, latest
from torchkiln.runtime.passes._source_lines import Line

# Operations of an optimiser are many and small; a reader asks for the parameter.
UPDATE_OPERATOR = "update"
_MAX_OPERATIONS = 60


@dataclass(slots=True)
class Lines:
    """Lines of the user's program, each once."""

    entries: list[SourceLine] = field(default_factory=list)
    _places: dict[Line, int] = field(default_factory=dict)

    def index(self, line: Line | None) -> int | None:
        if line is None:
            return None
        if line not in self._places:
            self._places[line] = len(self.entries)
            code = linecache.getline(line.file, line.number).strip()
            self.entries.append(SourceLine(short_path(line.file), line.number, line.function, code))
        return self._places[line]


def short_path(path: str) -> str:
    """Return a path as a person would name it: from here, or from the package that it is in."""
    here = os.getcwd()
    if path.startswith(here + os.sep):
        path = path[len(here) + 1 :]
    for marker in (f"{os.sep}site-packages{os.sep}", f"{os.sep}src{os.sep}"):
        _, found, rest = path.rpartition(marker)
        if found:
            return rest
    return path.removeprefix("src" + os.sep) if path.startswith("src" + os.sep) else path


@dataclass(frozen=True, slots=True)
class _Share:
    """What of a call belongs to one origin and operator."""

    origin: Origin
    operator: str
    weight: float
    flops: int


def attribute_call(
    index: int,
    entry: str,
    view: EntryView,
    planned: PlannedCall,
    microseconds: float | None,
    runs: float,
    kinds: Mapping[str, str],
    lines: Lines,
    elsewhere: Collection[int] = (),
    most: Mapping[int, int] | None = None,
) -> tuple[Call, list[Row]]:
    """Return a call of the plan, and the rows that its time is divided into.

    Args:
        index: Of the call in the profile.
        entry: Name of the entry point.
        view: The entry point.
        planned: The call.
        microseconds: Its time in a step; None if nothing was measured.
        runs: How often it runs in a step.
        kinds: Classes of the modules by name.
        lines: Where lines are kept.
        elsewhere: Nodes whose arithmetic another call does (`calculating_calls`).
        most: Elements that the longest loop of each node goes through (`longest_loops`).
    """
    origin = view.timeline.origin(planned)
    shares = _shares(view, planned, elsewhere, most or {})
    read = sum(tensor.size_bytes for tensor in planned.reads)
    written = sum(tensor.size_bytes for tensor in planned.writes)
    total = sum(share.weight for share in shares)
    rows = []
    for share in shares:
        part = share.weight / total
        rows.append(
            Row(
                call=index,
                phase=share.origin.phase.value,
                module=share.origin.module,
                module_kind=kinds.get(share.origin.module, ""),
                line=lines.index(share.origin.line),
                operator=share.operator,
                parameter=share.origin.parameter,
                us=None if microseconds is None else microseconds * part,
                flops=share.flops * runs,
                bytes_moved=(read + written) * runs * part,
                is_estimate=len(shares) > 1,
            )
        )
    call = Call(
        index=index,
        entry=entry,
        kernel=_readable(planned.kernel),
        kind=_kind(planned),
        phase=origin.phase.value,
        us=microseconds,
        runs=runs,
        flops=sum(share.flops for share in shares),
        bytes_read=read,
        bytes_written=written,
        inputs=tuple(tensor.form for tensor in planned.reads),
        outputs=tuple(tensor.form for tensor in planned.writes),
        operations=_operations(view, planned),
    )
    return call, rows


def calculating_calls(planned: Sequence[PlannedCall]) -> dict[int, int]:
    """Return the place of the one call that does the arithmetic of a node, where that is known.

    The compiler may take a node apart: a product stays a call of a library, and its bias is added
    by a generated kernel. Nodes that only generated kernels compute are not here: each of these
    kernels does all of it.
    """
    found: dict[int, int] = {}
    for place, call in enumerate(planned):
        for number in () if call.is_generated else call.nodes:
            found.setdefault(number, place)
    return found


def longest_loops(planned: Iterable[PlannedCall]) -> dict[int, int]:
    """Return how many elements the longest generated loop of each node goes through.

    A node may be spread over several kernels: the long loop of a mean, and the one division after
    it. A kernel is credited with the arithmetic of a node as far as it goes through its elements.
    """
    most: dict[int, int] = {}
    for call in planned:
        for part in call.parts if call.is_generated else ():
            for number in part.nodes:
                most[number] = max(most.get(number, 0), part.work)
    return most


def _shares(
    view: EntryView, planned: PlannedCall, elsewhere: Collection[int], most: Mapping[int, int]
) -> list[_Share]:
    here = longest_loops([planned])
    weights: dict[tuple[Origin, str], float] = {}
    flops: dict[tuple[Origin, str], int] = {}
    counted: set[int] = set(elsewhere)
    for part in planned.parts:
        numbers = _own_numbers(view, part)
        for number in numbers:
            origin, facts = view.timeline.origins[number], view.nodes[number]
            operator = UPDATE_OPERATOR if origin.phase is Phase.UPDATE else facts.operator
            key = (origin, operator)
            weights[key] = weights.get(key, 0.0) + part.work
            if number not in counted:
                longest = most.get(number)
                # Operators that are called as they are do all of it.
                done = here[number] / longest if longest and number in here else 1.0
                flops[key] = flops.get(key, 0) + round(facts.flops * done)
                counted.add(number)
    if not weights:
        # Nobody knows what it is for: still a row, or the rows would not add up.
        weights[(Origin(phase=_phase(view)), planned.kernel)] = 1.0
    return [
        _Share(origin, operator, weight, flops.get((origin, operator), 0))
        for (origin, operator), weight in weights.items()
    ]


def _phase(view: EntryView) -> Phase:
    """Return the phase of what has no origin: that of all others, if they agree."""
    phases = {origin.phase for origin in view.timeline.origins}
    return Phase.FORWARD if Phase.FORWARD in phases else Phase.UPDATE


def _own_numbers(view: EntryView, part: PlannedPart) -> list[int]:
    """Return the nodes that a loop is there for: of the latest phase, and views only alone."""
    working = [n for n in part.nodes if not view.nodes[n].is_view] or list(part.nodes)
    phase = latest(view.timeline.origins[number] for number in working).phase
    return [number for number in working if view.timeline.origins[number].phase is phase]


def _operations(view: EntryView, planned: PlannedCall) -> tuple[str, ...]:
    told = []
    for number in dict.fromkeys(planned.nodes):
        origin, facts = view.timeline.origins[number], view.nodes[number]
        owner = origin.parameter or origin.module
        place = ""
        if origin.line is not None:
            place = f" ({os.path.basename(origin.line.file)}:{origin.line.number})"
        told.append(f"{owner}: {facts.operator}{place}" if owner else f"{facts.operator}{place}")
    told = list(dict.fromkeys(told))
    if len(told) > _MAX_OPERATIONS:
        left = len(told) - _MAX_OPERATIONS
        told = [*told[:_MAX_OPERATIONS], f"and {left} more"]
    return tuple(told)


def _kind(planned: PlannedCall) -> str:
    if planned.is_generated:
        return "generated"
    return "copy" if any(word in planned.kernel for word in ("copy", "clone")) else "library"


def _readable(kernel: str) -> str:
    """Return the name of a kernel without what only the compiler cares for."""
    for prefix in ("torch.ops.", "extern_kernels."):
        kernel = kernel.removeprefix(prefix)
    return kernel.removesuffix(".default")
