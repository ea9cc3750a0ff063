"""Tables for a terminal: as wide as the terminal or COLUMNS, whole lines where neither is."""

from __future__ import annotations

import datetime
import os
import shutil
import sys
from collections.abc import Sequence

from torchkiln.report._units import short_name

# Wide enough for every list of Torchkiln's; who pipes a table wants whole lines.
_PLAIN_WIDTH = 160
_PADDING = 3  # around the text of a cell
_LEAST = 16  # characters of a text that is shortened: both ends can still be recognised


def print_table(
    title: str,
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    right: Sequence[str] = (),
    may_be_left_out: Sequence[str] = (),
    may_be_shortened: Sequence[str] = (),
) -> None:
    """Print rows under a title to standard output.

    Args:
        title: Above the table.
        columns: Their names.
        rows: A text for each column.
        right: Names of columns that hold numbers.
        may_be_left_out: Names of columns that go first where a terminal is too narrow, in this
            order; a line says which went.
        may_be_shortened: Names of columns whose texts lose their middles before others go.
    """
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    measured = sys.stdout.isatty() or os.environ.get("COLUMNS", "").isdecimal()
    width = shutil.get_terminal_size().columns if measured else _PLAIN_WIDTH
    left_out, longest = _fitted(columns, rows, width, may_be_left_out, may_be_shortened)
    table = Table(title=Text(title), title_justify="left", title_style="bold", box=box.SIMPLE_HEAD)
    shown = [place for place, column in enumerate(columns) if column not in left_out]
    for place in shown:
        justify = "right" if columns[place] in right else "left"
        table.add_column(Text(columns[place]), justify=justify, overflow="fold")  # type: ignore[arg-type]
    for row in rows:
        # Text, not markup: names may hold square brackets.
        table.add_row(*(Text(short_name(row[place], longest[columns[place]])) for place in shown))
    console = Console(file=sys.stdout, width=width, highlight=False)
    console.print(table)
    if left_out:
        console.print(Text(f"for lack of room without: {', '.join(left_out)}"))


def _fitted(
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    width: int,
    may_be_left_out: Sequence[str],
    may_be_shortened: Sequence[str],
) -> tuple[list[str], dict[str, int]]:
    """Return the columns without which a table fits, and the longest text of each other one."""
    longest = {
        column: max(len(text) for text in (column, *(row[place] for row in rows)))
        for place, column in enumerate(columns)
    }
    left_out: list[str] = []

    def room(lengths: dict[str, int]) -> int:
        return width - 1 - sum(lengths.values()) - _PADDING * len(lengths)

    def shortest() -> dict[str, int]:
        return {
            column: min(length, _LEAST) if column in may_be_shortened else length
            for column, length in longest.items()
        }

    for column in may_be_left_out:
        if room(shortest()) >= 0:
            break
        left_out.append(column)
        del longest[column]
    least = shortest()
    while room(longest) < 0 and longest != least:
        widest = max(longest, key=lambda column: longest[column] - least[column])
        longest[widest] -= 1
    return left_out, longest


def shown_time(time_s: float) -> str:
    """Write when something was, in local time."""
    return datetime.datetime.fromtimestamp(time_s).strftime("%Y-%m-%d %H:%M")
