"""Tables that commands print: as wide as the terminal or COLUMNS, whole lines where neither is."""

from __future__ import annotations

import datetime
import os
import shutil
import sys
from collections.abc import Sequence

# Wide enough for every list of Torchkiln's; who pipes a table wants whole lines.
_PLAIN_WIDTH = 160
_PADDING = 3  # around the text of a cell


def print_table(
    title: str,
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    right: Sequence[str] = (),
    may_be_left_out: Sequence[str] = (),
) -> None:
    """Print rows under a title to standard output.

    Args:
        title: Above the table.
        columns: Their names.
        rows: A text for each column.
        right: Names of columns that hold numbers.
        may_be_left_out: Names of columns that go first where a terminal is too narrow, in this
            order; a line says which went.
    """
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    measured = sys.stdout.isatty() or os.environ.get("COLUMNS", "").isdecimal()
    width = shutil.get_terminal_size().columns if measured else _PLAIN_WIDTH
    left_out = _too_wide(columns, rows, width, may_be_left_out)
    table = Table(title=Text(title), title_justify="left", title_style="bold", box=box.SIMPLE_HEAD)
    shown = [place for place, column in enumerate(columns) if column not in left_out]
    for place in shown:
        justify = "right" if columns[place] in right else "left"
        table.add_column(Text(columns[place]), justify=justify, overflow="fold")  # type: ignore[arg-type]
    for row in rows:
        # Text, not markup: names may hold square brackets.
        table.add_row(*(Text(row[place]) for place in shown))
    console = Console(file=sys.stdout, width=width, highlight=False)
    console.print(table)
    if left_out:
        console.print(Text(f"for lack of room without: {', '.join(left_out)}"))


def _too_wide(
    columns: Sequence[str], rows: Sequence[Sequence[str]], width: int, candidates: Sequence[str]
) -> list[str]:
    """Return the columns without which a table fits, or all `candidates`."""
    widths = {
        column: _PADDING + max(len(text) for text in (column, *(row[place] for row in rows)))
        for place, column in enumerate(columns)
    }
    left_out: list[str] = []
    for column in candidates:
        if sum(widths.values()) < width:
            break
        left_out.append(column)
        del widths[column]
    return left_out


def shown_time(time_s: float) -> str:
    """Write when something was, in local time."""
    return datetime.datetime.fromtimestamp(time_s).strftime("%Y-%m-%d %H:%M")
