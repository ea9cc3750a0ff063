"""One step as spans on a time line, nested: step, executable, phase, module, line, kernel.

Only the order of calls and their durations are measured. Python's part of a step comes before the
executable here, and the wait for data before both; a kernel that serves several lines is divided.
Where nothing was run, every call takes one microsecond.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from torchkiln.profiling.graph._values import GraphProfile, Row, SourceLine
from torchkiln.profiling.views._totals import UNEXPLAINED, line_label, unexplained_us

NOT_RUN = "one microsecond a call: nothing was run"


@dataclass(frozen=True, slots=True)
class Level:
    """One of the spans that something lies in, from the outside to the inside."""

    name: str
    kind: str
    line: SourceLine | None = None


@dataclass(frozen=True, slots=True)
class Edge:
    """The beginning or the end of a span.

    Args:
        opens: Whether it begins.
        at_ns: When, in whole nanoseconds from the start of the step.
        level: What begins or ends.
        facts: More about it, for whoever looks.
    """

    opens: bool
    at_ns: int
    level: Level
    facts: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Piece:
    """Something without parts: what it lies in, and how long it takes."""

    path: tuple[Level, ...]
    us: float
    facts: dict[str, Any]
    call: int | None


@dataclass(frozen=True, slots=True)
class Timeline:
    """A step.

    Args:
        edges: Beginnings and ends in order; each end is that of the span that began last.
        call_ns: When each call begins, by its index.
        end_ns: When the step ends.
    """

    edges: list[Edge]
    call_ns: dict[int, int]
    end_ns: int


def lay_out(profile: GraphProfile) -> Timeline:
    """Return the time line of a step."""
    edges: list[Edge] = []
    call_ns: dict[int, int] = {}
    open_levels: list[Level] = []
    at_us = 0.0
    at_ns = 0
    before: int | None = None
    for piece in _pieces(profile):
        # The innermost span, the piece itself, is closed already; those around it may go on.
        kept = _common(open_levels, piece.path[:-1])
        while len(open_levels) > kept:
            edges.append(Edge(False, at_ns, open_levels.pop()))
        for level in piece.path[kept:]:
            is_last = level is piece.path[-1]
            edges.append(Edge(True, at_ns, level, piece.facts if is_last else {}))
            open_levels.append(level)
        if piece.call is not None and piece.call != before:
            call_ns.setdefault(piece.call, at_ns)
            before = piece.call
        at_us += piece.us
        # Rounded once for all spans that meet here.
        at_ns = round(1000 * at_us)
        edges.append(Edge(False, at_ns, open_levels.pop()))
    while open_levels:
        edges.append(Edge(False, at_ns, open_levels.pop()))
    return Timeline(edges, call_ns, at_ns)


def _common(open_levels: list[Level], path: tuple[Level, ...]) -> int:
    """Return how many of the open spans go on."""
    count = 0
    for ours, theirs in zip(open_levels, path, strict=False):
        if ours != theirs:
            break
        count += 1
    return count


def _pieces(profile: GraphProfile) -> Iterator[_Piece]:
    """Yield what the step consists of, in order."""
    whole = Level(f"one step of {profile.name}", "step")
    times = profile.times
    path: tuple[Level, ...]
    executable = (whole, Level("executable" if times is not None else NOT_RUN, "executable"))
    if times is not None:
        for name, us in (
            ("waiting for data", times.waiting_us),
            ("between calls, other", times.other_us),
            ("Python around the executable", times.outside_us),
        ):
            if us:
                yield _Piece((whole, Level(name, "outside")), us, {}, None)
    by_call: dict[int, list[Row]] = {}
    for row in profile.rows:
        by_call.setdefault(row.call, []).append(row)
    for call in profile.calls:
        rows = by_call.get(call.index, [])
        facts = {
            "call": call.index,
            "kind": call.kind,
            "entry": call.entry,
            "runs": call.runs,
            "inputs": ", ".join(call.inputs),
            "outputs": ", ".join(call.outputs),
        }
        if not rows:
            path = (*executable, Level(call.phase, "phase"), Level(call.kernel, "kernel"))
            # Times of rows add up to the executable; a call without rows has no share in it.
            yield _Piece(path, 1.0 if times is None else 0.0, facts, call.index)
        for row in rows:
            more = {"operator": row.operator, "estimate": row.is_estimate}
            us = 1.0 / len(rows) if times is None else row.us or 0.0
            path = (*executable, *_levels(profile, row), Level(call.kernel, "kernel"))
            yield _Piece(path, us, facts | more, call.index)
    rest = unexplained_us(profile)
    if rest > 0:
        yield _Piece((*executable, Level(UNEXPLAINED, "outside")), rest, {}, None)


def _levels(profile: GraphProfile, row: Row) -> list[Level]:
    """Return phase, module path and line of a row."""
    modules = module_parts(row.module)
    line = Level(line_label(profile, row), "line", profile.line_of(row))
    return [Level(row.phase, "phase"), *(Level(name, "module") for name in modules), line]


def module_parts(module: str) -> list[str]:
    """Return the names of a module and of those around it, from the outside: `a.b` is a, a.b."""
    words = module.split(".") if module else []
    return [".".join(words[: place + 1]) for place in range(len(words))]
