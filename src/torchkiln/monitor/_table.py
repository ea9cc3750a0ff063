"""The table of `torchkiln monitor`: one line for each process, one below it for each program."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from torchkiln.monitor._status import MachineStatus, ProcessStatus, ProgramStatus

_STYLES = {
    "compiling": "yellow",
    "running": "green",
    "waiting for data": "magenta",
    "idle": "dim",
    "stopped": "red",
}
NOTHING = "-"
_GAP = 2
_COMMAND, _STATE = "command / program", "state"
# How narrow texts may become before a column is left out.
_ELASTIC = {_COMMAND: 20, _STATE: 16}


@dataclass(frozen=True, slots=True)
class _Column:
    """One column.

    Args:
        title: At its head.
        rank: Those of the highest rank are left out first where room is short; 0: never.
        of_process: What it says of a process.
        of_program: What it says of a program.
        is_number: Numbers stand on the right, and are never cut.
    """

    title: str
    rank: int
    of_process: Callable[[ProcessStatus], str]
    of_program: Callable[[ProgramStatus], str]
    is_number: bool = True


def _empty(_: ProcessStatus | ProgramStatus) -> str:
    return ""


# In the order in which they stand; narrow screens show fewer of them.
_COLUMNS = (
    _Column("PID", 0, lambda p: str(p.pid), _empty),
    _Column("user", 6, lambda p: escape(p.user), _empty, is_number=False),
    _Column("time", 4, lambda p: span_text(p.seconds), _empty),
    _Column(
        _COMMAND,
        0,
        lambda p: f"[bold]{escape(p.command)}",
        lambda p: f"  {escape(p.name)}",
        is_number=False,
    ),
    _Column(_STATE, 0, lambda p: _state(p.state), lambda p: _program_state(p), is_number=False),
    _Column("backend", 6, _empty, lambda p: escape(p.backend), is_number=False),
    _Column("built", 5, _empty, lambda p: escape(p.source) or NOTHING, is_number=False),
    _Column("rank", 7, _empty, lambda p: rank_text(p)),
    _Column("steps/s", 0, _empty, lambda p: number_text(p.steps_per_s)),
    _Column("samples/s", 2, lambda p: _samples(p), _empty),
    _Column("exec", 3, _empty, lambda p: share_text(p.executing_share)),
    _Column("wait", 3, lambda p: share_text(p.waiting_share), _empty),
    _Column("epoch", 5, lambda p: _epoch(p), _empty),
    _Column("loss", 3, lambda p: loss_text(p), _empty),
    _Column("memory", 1, lambda p: _memory(p), _empty),
    _Column("peak", 7, lambda p: _peak(p), _empty),
    _Column("CPU", 4, lambda p: _cores(p), _empty),
    _Column("thr", 8, lambda p: _count(p, "num_threads"), _empty),
    _Column("child", 8, lambda p: _count(p, "num_children"), _empty),
)


def status_table(status: MachineStatus, width: int) -> RenderableType:
    """Return what runs on this machine, for a screen of so many columns."""
    parts: list[RenderableType] = []
    if status.processes:
        parts.append(_process_table(status, width))
    else:
        parts.append(Text("No program of yours runs on this machine."))
    if status.others:
        parts.append(_other_table(status))
    if status.num_other_format:
        many = status.num_other_format > 1
        parts.append(
            Text(
                f"{status.num_other_format} process{'es' * many} of another version of Torchkiln "
                f"{'are' if many else 'is'} not shown; use the monitor of that version."
            )
        )
    return Group(*parts)


def _process_table(status: MachineStatus, width: int) -> Table:
    rows = []
    for process in status.processes:
        rows.append([Text.from_markup(column.of_process(process)) for column in _COLUMNS])
        rows += [
            [Text.from_markup(column.of_program(program)) for column in _COLUMNS]
            for program in process.programs
        ]
    needed = {
        column.title: max(len(column.title), *(row[number].cell_len for row in rows))
        for number, column in enumerate(_COLUMNS)
    }
    widths = _fit(needed, width)
    table = Table(box=None, padding=(0, _GAP, 0, 0), header_style="bold cyan")
    for column in _COLUMNS:
        if column.title in widths:
            table.add_column(
                column.title,
                justify="right" if column.is_number else "left",
                no_wrap=True,
                overflow="ellipsis",
                width=widths[column.title],
            )
    for row in rows:
        cells = zip(_COLUMNS, row, strict=True)
        table.add_row(*(cell for column, cell in cells if column.title in widths))
    return table


def _fit(needed: dict[str, int], width: int) -> dict[str, int]:
    """Return the widths of the columns that there is room for, by title.

    Texts give way first, then whole columns: half a number would be another number.
    """
    ranks = {column.title: column.rank for column in _COLUMNS}
    widths = dict(needed)
    while True:
        excess = sum(widths.values()) + _GAP * len(widths) - width
        for title, least in _ELASTIC.items():
            given = min(max(excess, 0), max(needed[title] - least, 0))
            widths[title] = needed[title] - given
            excess -= given
        # The last of those that matter least, so that the first columns stay.
        worst = max(reversed(widths), key=lambda title: ranks[title])
        if excess <= 0 or not ranks[worst]:
            return widths
        del widths[worst]
        widths.update({title: needed[title] for title in _ELASTIC})


def _other_table(status: MachineStatus) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold cyan")
    table.add_column("\nPID", justify="right")
    table.add_column("\nuser (others)")
    table.add_column("\ntime", justify="right")
    for other in status.others:
        table.add_row(str(other.pid), escape(other.user), span_text(other.seconds))
    return table


def _state(state: str) -> str:
    return f"[{_STYLES[state]}]{state}"


def _program_state(program: ProgramStatus) -> str:
    return f"[dim]{escape(program.phase or program.state)}"


def rank_text(program: ProgramStatus) -> str:
    """Return "0/4", counted from 0 as everywhere in torch; nothing where there is one process."""
    return f"{program.rank}/{program.num_ranks}" if program.num_ranks > 1 else NOTHING


def number_text(value: float | None) -> str:
    """Return a rate with three digits."""
    if value is None:
        return NOTHING
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def share_text(value: float | None) -> str:
    return NOTHING if value is None else f"{100 * value:.0f} %"


def _epoch(process: ProcessStatus) -> str:
    training = process.training
    return NOTHING if training is None else f"{training.epoch}/{training.num_epochs}"


def loss_text(process: ProcessStatus) -> str:
    training = process.training
    if training is None or math.isnan(training.loss):
        return NOTHING
    return f"{training.loss:.4g}"


def bytes_text(count: int | None) -> str:
    if count is None:
        return NOTHING
    return f"{count / 2**30:.1f} GB" if count >= 2**30 else f"{count / 2**20:.0f} MB"


def span_text(seconds: float) -> str:
    """Return "13s", "2m05s", "3h07m" or "2d04h"."""
    whole = int(seconds)
    if whole < 60:
        return f"{whole}s"
    for size, first, below, second in ((3600, "m", 60, "s"), (86400, "h", 3600, "m")):
        if whole < size:
            return f"{whole // below}{first}{whole % below // (below // 60):02d}{second}"
    return f"{whole // 86400}d{whole % 86400 // 3600:02d}h"


def _samples(process: ProcessStatus) -> str:
    return number_text(process.training.samples_per_s if process.training else None)


def _memory(process: ProcessStatus) -> str:
    return bytes_text(process.resources.memory_bytes if process.resources else None)


def _peak(process: ProcessStatus) -> str:
    return bytes_text(process.resources.peak_bytes if process.resources else None)


def _cores(process: ProcessStatus) -> str:
    cores = process.resources.cpu_cores if process.resources else None
    return NOTHING if cores is None else f"{100 * cores:.0f} %"


def _count(process: ProcessStatus, name: str) -> str:
    return str(getattr(process.resources, name)) if process.resources else NOTHING
