"""Two profiles compared row by row; the differences add up to the difference of the step times."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Literal

from torchkiln.profiling.graph._values import GraphProfile, Row
from torchkiln.profiling.views._matching import match_lines
from torchkiln.profiling.views._totals import (
    NO_PARAMETER,
    UNEXPLAINED,
    line_label,
    module_label,
    rows_us,
)

DiffView = Literal["row", "line", "module", "operator", "phase", "parameter"]
OUTSIDE, WAITING, OTHER = "outside: Python and marshalling", "waiting for data", "other"
_Key = tuple[Hashable, ...]


@dataclass(frozen=True, slots=True)
class Difference:
    """Something in two profiles.

    Args:
        label: What it is.
        detail: More about it: module and operator of a row, the text of a line.
        first: Microseconds, or bytes, in the first profile; None if it is not there.
        second: The same in the second.
    """

    label: str
    detail: str
    first: float | None
    second: float | None

    @property
    def change(self) -> float:
        return (self.second or 0.0) - (self.first or 0.0)

    @property
    def status(self) -> str:
        """Return `new`, `gone`, or nothing if both have it."""
        if self.first is None:
            return "new" if self.second is not None else ""
        return "gone" if self.second is None else ""


@dataclass(frozen=True, slots=True)
class ProfileDiff:
    """What differs between two profiles.

    Args:
        times: Everything that a step spends its time with, the largest change first; the changes
            add up to the change of `loop`. Empty if one of the profiles was not run.
        loop: One step with what lies between two of them.
        memory: Everything that is alive at the peak, the largest change first; the changes add up
            to the change of `total_bytes`. Empty if one of the profiles has no plan.
        total_bytes: What the program needs at the worst moment.
        remarks: What to know before reading on.
    """

    times: list[Difference]
    loop: Difference | None
    memory: list[Difference]
    total_bytes: Difference | None
    remarks: list[str]


def compare_profiles(
    first: GraphProfile, second: GraphProfile, by: DiffView = "row"
) -> ProfileDiff:
    """Compare two profiles.

    Args:
        first: The one before.
        second: The one after.
        by: What rows are summed by; `row` is phase, module, line, operator and parameter.
    """
    same_line = match_lines(first.lines, second.lines)
    times: list[Difference] = []
    loop = None
    if first.times is not None and second.times is not None:
        loop = Difference("step in its loop", "", first.times.loop_us, second.times.loop_us)
        times = _times(first, second, same_line, by)
    memory: list[Difference] = []
    total = None
    if first.liveness is not None and second.liveness is not None:
        sizes = first.liveness.total_bytes, second.liveness.total_bytes
        total = Difference("memory at the peak", "", *sizes)
        memory = _memory(first, second, same_line)
    return ProfileDiff(times, loop, memory, total, _remarks(first, second))


def _times(
    first: GraphProfile, second: GraphProfile, same_line: dict[int, int], by: DiffView
) -> list[Difference]:
    before = _sums(first, lambda line: line, by)
    after = _sums(second, lambda line: _as_in_first(line, same_line), by)
    found = [_difference(key, before, after) for key in dict.fromkeys((*before, *after))]
    a, b = first.times, second.times
    assert a is not None
    assert b is not None
    for label, pair in (
        (OUTSIDE, (a.outside_us, b.outside_us)),
        (WAITING, (a.waiting_us, b.waiting_us)),
        (OTHER, (a.other_us, b.other_us)),
    ):
        if any(us is not None for us in pair):
            found.append(Difference(label, "", *pair))
    # Rounding, and whatever rows do not explain: without it the sum would not be that of the steps.
    rest = [
        one.loop_us
        - math.fsum((rows_us(profile.rows), one.outside_us, one.waiting_us or 0, one.other_us or 0))
        for profile, one in ((first, a), (second, b))
    ]
    if any(rest):
        found.append(Difference(UNEXPLAINED, "rounding, and time that no row explains", *rest))
    return sorted(found, key=lambda one: (-abs(one.change), one.label))


@dataclass(slots=True)
class _Sum:
    """Rows of one key: what they are called, and their times."""

    label: str
    detail: str
    values: list[float]


def _sums(
    profile: GraphProfile, as_first: Callable[[int | None], Hashable], by: DiffView
) -> dict[_Key, _Sum]:
    sums: dict[_Key, _Sum] = {}
    for row in profile.rows:
        key, label, detail = _named(profile, row, as_first(row.line), by)
        sums.setdefault(key, _Sum(label, detail, [])).values.append(row.us or 0.0)
    return sums


def _named(profile: GraphProfile, row: Row, line: Hashable, by: DiffView) -> tuple[_Key, str, str]:
    """Return key, label and detail of what a row belongs to."""
    if by == "module":
        return (row.module,), module_label(row.module), row.module_kind
    if by == "operator":
        return (row.operator,), row.operator, ""
    if by == "phase":
        return (row.phase,), row.phase, ""
    if by == "parameter":
        return (row.parameter,), row.parameter or NO_PARAMETER, ""
    label = line_label(profile, row)
    source = profile.line_of(row)
    if by == "line":
        return (line, label if line is None else ""), label, source.code.strip() if source else ""
    key = (row.phase, row.module, line, row.operator, row.parameter)
    return key, label, f"{row.phase}, {module_label(row.module)}, {row.operator}"


def _as_in_first(line: int | None, same_line: dict[int, int]) -> Hashable:
    """Return a line of the second profile as the first one counts; a new one is nobody else's."""
    if line is None:
        return None
    return same_line.get(line, ("new", line))


def _difference(key: _Key, before: dict[_Key, _Sum], after: dict[_Key, _Sum]) -> Difference:
    named = after.get(key) or before[key]
    values = [math.fsum(side[key].values) if key in side else None for side in (before, after)]
    return Difference(named.label, named.detail, *values)


def _memory(
    first: GraphProfile, second: GraphProfile, same_line: dict[int, int]
) -> list[Difference]:
    before = _sizes(first, lambda line: line)
    after = _sizes(second, lambda line: _as_in_first(line, same_line))
    found = [_difference(key, before, after) for key in dict.fromkeys((*before, *after))]
    return sorted(found, key=lambda one: (-abs(one.change), one.label))


def _sizes(profile: GraphProfile, as_first: Callable[[int | None], Hashable]) -> dict[_Key, _Sum]:
    """Return what is alive at the peak, by name, or by kind, module, line and operator."""
    liveness = profile.liveness
    assert liveness is not None
    sums: dict[_Key, _Sum] = {
        ("always", name): _Sum(name, "always there", [size])
        for name, size in liveness.always.items()
    }
    for block in liveness.blocks:
        if block.at_peak:
            line = profile.line_of(block)
            key = (block.kind, block.module, as_first(block.line), block.operator)
            detail = f"{block.kind}, {module_label(block.module)}, {block.operator}"
            entry = sums.setdefault(key, _Sum(str(line or "(no line)"), detail, []))
            entry.values.append(block.size_bytes)
    rest = liveness.total_bytes - sum(sum(entry.values) for entry in sums.values())
    if rest:
        detail = "part of the peak that no block explains"
        sums["unexplained",] = _Sum(UNEXPLAINED, detail, [rest])
    return sums


def _remarks(first: GraphProfile, second: GraphProfile) -> list[str]:
    """Return what makes two profiles hard to compare."""
    remarks = []
    if first.times is None or second.times is None:
        which = [n for n, one in (("first", first), ("second", second)) if one.times is None]
        remarks.append(f"No times: nothing was run for the {' and the '.join(which)} profile.")
    elif (first.times.waiting_us is None) != (second.times.waiting_us is None):
        which_one = "first" if first.times.waiting_us is None else "second"
        remarks.append(
            f"The loop around the {which_one} program was not seen, so waiting and other time "
            "between its steps count as 0; compare the rows inside the step."
        )
    for name, a, b in (
        ("models", first.model, second.model),
        (
            "kinds of program",
            *(("training" if p.training else "inference") for p in (first, second)),
        ),
        ("inputs", ", ".join(first.inputs), ", ".join(second.inputs)),
        ("micro-batches in a step", *(str(p.micro_batches_per_step) for p in (first, second))),
    ):
        if a != b:
            remarks.append(f"The {name} differ: {a or 'none'} and {b or 'none'}.")
    for name in sorted(first.machine.keys() | second.machine.keys()):
        a, b = (profile.machine.get(name, "unknown") for profile in (first, second))
        if a != b:
            remarks.append(f"The machines differ in {name}: {a} and {b}.")
    return remarks
