"""Profiles and comparisons as tables of text, for a terminal or a pipe."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torchkiln.profiling.graph._values import GraphProfile
from torchkiln.profiling.views._diff import Difference, DiffView, ProfileDiff
from torchkiln.profiling.views._liveness_plot import blocks_at_peak
from torchkiln.profiling.views._numbers import (
    UNKNOWN,
    format_bytes,
    format_rate,
    format_share,
    format_us,
    plain_us,
    with_sign,
)
from torchkiln.profiling.views._totals import Group, View, group_rows, module_label
from torchkiln.report._units import format_count, format_seconds, short_name

_Write = Callable[[float | None], str]
_LONGEST = 60  # of a name in a table
_LONGEST_CODE = 36
_NUMBERS = ("µs", "share", "calls", "GFLOP/s", "GB/s", "of roof", "size", "at call")
_TITLES: dict[View, str] = {
    "line": "Lines",
    "module": "Modules",
    "operator": "Operators",
    "phase": "Phases",
    "parameter": "Parameters that the update changes",
    "call": "Calls in their order",
}


@dataclass(frozen=True, slots=True)
class TextTable:
    """A table: columns of numbers are on the right.

    On narrow terminals some columns are shortened, and then some are left out.
    """

    title: str
    columns: tuple[str, ...]
    rows: list[tuple[str, ...]]
    right: tuple[str, ...] = _NUMBERS
    may_be_left_out: tuple[str, ...] = ()
    may_be_shortened: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def summary_table(profile: GraphProfile) -> TextTable:
    """Return what a step consists of, and what it needs."""
    rows: list[tuple[str, ...]] = []
    times = profile.times
    if times is not None:
        loop = times.loop_us
        rows += [
            ("one step", format_us(loop), "with what lies between two steps"),
            (
                "  executable",
                format_us(times.executable_us),
                format_share(times.executable_us, loop),
            ),
            ("  outside", format_us(times.outside_us), format_share(times.outside_us, loop)),
        ]
        for name, us in (("waiting", times.waiting_us), ("other", times.other_us)):
            rows.append(
                (f"  {name}", UNKNOWN, "the caller's loop was not seen")
                if us is None
                else (f"  {name}", format_us(us), format_share(us, loop))
            )
        used = f"{times.steps_used} of {times.steps_measured} measured"
        rows.append(("steps", used, f"the slowest took {format_us(times.slowest_us)}"))
    else:
        rows.append(("one step", "not run", "only memory and program are known"))
    liveness = profile.liveness
    if liveness is not None:
        free = format_bytes(liveness.machine_bytes)
        fits = f"{'fits into' if liveness.fits else 'does not fit into'} {free}"
        rows.append(("memory at the peak", format_bytes(liveness.total_bytes), fits))
    if profile.from_cache:
        rows.append(("compilation", "none", "the executable came from the cache"))
    elif profile.compile_seconds:
        total = format_seconds(sum(profile.compile_seconds.values()))
        parts = (f"{name} {format_seconds(s)}" for name, s in profile.compile_seconds.items())
        rows.append(("compilation", total, ", ".join(parts)))
    rows.append(("model", profile.model, format_count(profile.num_parameters, "parameters")))
    return TextTable(
        f"{profile.name}: {profile.model}",
        ("", "value", "remark"),
        rows,
        notes=("executable: native code; outside: Python around it in each step",) * bool(times),
    )


def groups_table(profile: GraphProfile, by: View, top: int) -> TextTable | None:
    """Return the longest groups of a view; None if nothing was run."""
    if profile.times is None:
        return None
    groups = group_rows(profile, by)
    executable = profile.times.executable_us
    shown = groups[:top]
    rows = [_group_cells(group, executable) for group in shown]
    left = groups[top:]
    if left:
        us = sum(group.us for group in left)
        others = f"{format_count(len(left), 'others')}"
        rows.append((others, "", plain_us(us), format_share(us, executable), *[""] * 4))
    notes = ["~ estimate: one kernel serves several of these, its time is divided by their work"]
    return TextTable(
        f"{_TITLES[by]}: time inside the executable, {format_us(executable)} in one step",
        (by, "what", "µs", "share", "calls", "GFLOP/s", "GB/s", "of roof"),
        rows,
        may_be_left_out=("of roof", "GB/s", "GFLOP/s", "what", "calls"),
        notes=tuple(notes) if any(group.is_estimate for group in shown) else (),
    )


def _group_cells(group: Group, executable_us: float) -> tuple[str, ...]:
    mark = "~" if group.is_estimate else ""
    attained = group.speed.attained
    return (
        short_name(group.label, _LONGEST),
        short_name(group.detail, _LONGEST_CODE),
        f"{mark}{plain_us(group.us)}",
        format_share(group.us, executable_us),
        f"{group.num_calls:,.4g}",
        format_rate(group.speed.gflops_per_s),
        format_rate(group.speed.gbytes_per_s),
        UNKNOWN if attained is None else f"{attained:.0%} {group.speed.bound}",
    )


def memory_table(profile: GraphProfile, top: int) -> TextTable | None:
    """Return what is alive at the peak, the largest first; None without a plan."""
    liveness = profile.liveness
    if liveness is None:
        return None
    total = liveness.total_bytes
    rows: list[tuple[str, ...]] = [
        (name, "always there", format_bytes(size), format_share(size, total), "")
        for name, size in sorted(liveness.always.items(), key=lambda item: -item[1])
    ]
    blocks = blocks_at_peak(liveness)
    for block in blocks[:top]:
        where = str(profile.line_of(block) or module_label(block.module))
        what = f"{block.kind} {block.shape} of {block.operator}"
        size = format_bytes(block.size_bytes)
        lifetime = f"{block.born:,}..{block.last:,}"
        share = format_share(block.size_bytes, total)
        rows.append((short_name(where, _LONGEST), what, size, share, lifetime))
    left = blocks[top:]
    if left:
        size_bytes = sum(block.size_bytes for block in left)
        share = format_share(size_bytes, total)
        others = format_count(len(left), "others")
        rows.append((others, "", format_bytes(size_bytes), share, ""))
    listed = sum(block.size_bytes for block in blocks)
    notes = [
        f"{format_bytes(listed)} in blocks are listed, the plan says "
        f"{format_bytes(liveness.peak_bytes)}"
    ] * (listed != liveness.peak_bytes)
    notes += [f"what helps: {advice}" for advice in liveness.advice]
    return TextTable(
        f"Memory at the peak, {format_bytes(total)}, at call {liveness.peak_call:,}",
        ("where", "what", "size", "share", "calls"),
        rows,
        may_be_left_out=("calls", "what"),
        may_be_shortened=("where", "what"),
        notes=tuple(notes),
    )


def insight_lines(profile: GraphProfile) -> list[str]:
    """Return what to change, one paragraph each."""
    lines = []
    for insight in profile.insights:
        gains = []
        if insight.gain_us is not None:
            gains.append(f"about {format_us(insight.gain_us)} a step")
        if insight.gain_bytes is not None:
            gains.append(f"about {format_bytes(insight.gain_bytes)}")
        gain = f" Expected gain: {' and '.join(gains)}." if gains else ""
        lines.append(f"{insight.title}. {insight.text} Change: {insight.remedy}.{gain}")
    return lines


def diff_tables(
    diff: ProfileDiff, names: tuple[str, str], top: int, by: DiffView = "row"
) -> list[TextTable]:
    """Return the tables of a comparison; each ends with a total that its rows add up to."""
    tables = []
    if diff.loop is not None:
        title = f"Time of one step, {_change(diff.loop, format_us)}"
        table = _diff_table(title, diff.times, diff.loop, names, top, plain_us, "µs")
        if by != "row":
            # What is compared has a name of its own; the rest of a row's is only in this column.
            left_out = ("what", *table.may_be_left_out)
            table = dataclasses.replace(table, may_be_left_out=left_out)
        tables.append(table)
    if diff.total_bytes is not None:
        title = f"Memory at the peak, {_change(diff.total_bytes, format_bytes)}"
        tables.append(
            _diff_table(title, diff.memory, diff.total_bytes, names, top, _maybe_bytes, "")
        )
    return tables


def _maybe_bytes(size: float | None) -> str:
    return UNKNOWN if size is None else format_bytes(size)


def _change(one: Difference, write: Callable[[float], str]) -> str:
    first, second = one.first or 0.0, one.second or 0.0
    share = f" ({100 * one.change / first:+.1f} %)" if first else ""
    return f"{write(first)} -> {write(second)}{share}"


def _diff_table(
    title: str,
    differences: list[Difference],
    total: Difference,
    names: tuple[str, str],
    top: int,
    write: _Write,
    unit: str,
) -> TextTable:
    # A table must not have two columns of one name.
    a, b = names if names[0] != names[1] else (f"{names[0]} (A)", f"{names[1]} (B)")
    columns = ("", "what", a, b, f"change {unit}".strip(), "note")
    changed = [one for one in differences if one.change or one.status]
    rows = [_diff_cells(one, write) for one in changed[:top]]
    left = [*changed[top:], *(one for one in differences if not (one.change or one.status))]
    if left:
        rest = Difference(
            format_count(len(left), "others"),
            "",
            sum(one.first or 0.0 for one in left),
            sum(one.second or 0.0 for one in left),
        )
        rows.append(_diff_cells(rest, write))
    rows.append(_diff_cells(Difference("total", "", total.first, total.second), write))
    return TextTable(title, columns, rows, columns[2:5], ("note", a, b), ("", "what"))


def _diff_cells(one: Difference, write: _Write) -> tuple[str, ...]:
    return (
        short_name(one.label, _LONGEST),
        short_name(one.detail, _LONGEST),
        write(one.first),
        write(one.second),
        with_sign(write(one.change), one.change),
        one.status,
    )


def all_tables(profile: GraphProfile, by: View | None, top: int) -> Sequence[TextTable]:
    """Return what `torchkiln profile show` prints: everything, or one view."""
    if by is not None:
        views: tuple[View, ...] = (by,)
    else:
        views = ("phase", "line", "module", "operator")
    tables = [summary_table(profile), *(groups_table(profile, view, top) for view in views)]
    tables.append(memory_table(profile, top) if by is None or profile.times is None else None)
    return [table for table in tables if table is not None]
