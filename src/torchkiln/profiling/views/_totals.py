"""Rows of a profile summed by module, line, operator, phase, parameter or call.

Every row is in exactly one group, so the groups of each view add up to the time inside the
executable. What the rows leave unexplained, if anything, is a group of its own.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

from torchkiln.profiling.graph._values import GraphProfile, Row
from torchkiln.profiling.views._roofline import Speed, speed_of

View = Literal["line", "module", "operator", "phase", "parameter", "call"]
VIEWS: tuple[View, ...] = ("line", "module", "operator", "phase", "parameter", "call")
PHASES = ("forward", "backward", "update")
OUTERMOST = "(outermost module)"
NO_LINE = "(no line)"
NO_PARAMETER = "(no parameter)"
UNEXPLAINED = "(not assigned)"
# Less than a thousandth of what is measured is rounding.
_ROUNDING = 1e-3


@dataclass(frozen=True, slots=True)
class Group:
    """Some rows together.

    Args:
        label: What they have in common.
        detail: More about that: the text of a line, the class of a module.
        us: Time in one step.
        phase_us: The same by phase.
        num_calls: How often kernels run for it in one step; kernels that serve others count, too.
        flops: In one step.
        bytes_moved: In one step.
        is_estimate: Whether a part of the time is divided by work, not measured: of a kernel that
            also serves rows in other groups.
        speed: What it reaches.
        rows: Places in `GraphProfile.rows`.
    """

    label: str
    detail: str
    us: float
    phase_us: dict[str, float]
    num_calls: float
    flops: float
    bytes_moved: float
    is_estimate: bool
    speed: Speed
    rows: tuple[int, ...] = field(repr=False)


def phases_of(profile: GraphProfile) -> list[str]:
    """Return the phases that a profile has, in their order."""
    seen = {row.phase for row in profile.rows} | {call.phase for call in profile.calls}
    return [phase for phase in PHASES if phase in seen] + sorted(seen - set(PHASES))


def group_rows(profile: GraphProfile, by: View) -> list[Group]:
    """Return the groups of a view, the longest first; calls and phases in their order."""
    places: dict[tuple[str, str], list[int]] = {}
    for place, row in enumerate(profile.rows):
        places.setdefault(_key(profile, row, by), []).append(place)
    parts = parts_of_calls(profile)
    groups = [_group(profile, key, found, parts) for key, found in places.items()]
    if by == "phase":
        order = phases_of(profile)
        groups.sort(key=lambda group: order.index(group.label))
    elif by == "call":
        groups.sort(key=lambda group: profile.rows[group.rows[0]].call)
    else:
        groups.sort(key=lambda group: (-group.us, group.label))
    rest = unexplained_us(profile)
    if rest:
        detail = "time inside the executable that no row explains"
        groups.append(Group(UNEXPLAINED, detail, rest, {}, 0, 0, 0, False, Speed(None, None), ()))
    return groups


def unexplained_us(profile: GraphProfile) -> float:
    """Return what the rows lack of the time inside the executable; 0 up to rounding."""
    if profile.times is None:
        return 0.0
    rest = profile.times.executable_us - rows_us(profile.rows)
    return rest if abs(rest) > _ROUNDING * profile.times.executable_us else 0.0


def parts_of_calls(profile: GraphProfile) -> Counter[int]:
    """Return how many rows each call is divided into; calls that are not divided are left out."""
    return Counter(row.call for row in profile.rows if row.is_estimate)


def rows_us(rows: Iterable[Row]) -> float:
    return math.fsum(row.us or 0.0 for row in rows)


def line_label(profile: GraphProfile, row: Row) -> str:
    """Return the line of a row; of an update row without one, the parameter that it changes."""
    line = profile.line_of(row)
    if line is not None:
        return str(line)
    return f"update of {row.parameter}" if row.parameter else NO_LINE


def module_label(module: str) -> str:
    return module or OUTERMOST


def call_label(profile: GraphProfile, index: int) -> str:
    return f"{index}: {profile.calls[index].kernel}"


def _key(profile: GraphProfile, row: Row, by: View) -> tuple[str, str]:
    """Return label and detail of the group that a row is in."""
    if by == "module":
        return module_label(row.module), row.module_kind
    if by == "operator":
        return row.operator, ""
    if by == "phase":
        return row.phase, ""
    if by == "parameter":
        return row.parameter or NO_PARAMETER, ""
    if by == "call":
        return call_label(profile, row.call), profile.calls[row.call].kind
    line = profile.line_of(row)
    return line_label(profile, row), "" if line is None else line.code.strip()


def _group(
    profile: GraphProfile, key: tuple[str, str], places: list[int], parts: Counter[int]
) -> Group:
    rows = [profile.rows[place] for place in places]
    own_parts = Counter(row.call for row in rows if row.is_estimate)
    times: dict[str, list[float]] = {}
    for row in rows:
        times.setdefault(row.phase, []).append(row.us or 0.0)
    return Group(
        label=key[0],
        detail=key[1],
        us=rows_us(rows),
        phase_us={phase: math.fsum(values) for phase, values in times.items()},
        num_calls=math.fsum(profile.calls[call].runs for call in {row.call for row in rows}),
        flops=math.fsum(row.flops for row in rows),
        bytes_moved=math.fsum(row.bytes_moved for row in rows),
        is_estimate=any(parts[call] > count for call, count in own_parts.items()),
        speed=speed_of(rows, profile.peaks),
        rows=tuple(places),
    )
