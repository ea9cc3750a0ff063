"""Tables that commands print: as wide as the terminal, or as their content where there is none."""

from __future__ import annotations

import datetime
import sys
from collections.abc import Sequence

# Wide enough for every list of Torchkiln's; who pipes a table wants whole lines.
_PLAIN_WIDTH = 160


def print_table(
    title: str,
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    right: Sequence[str] = (),
) -> None:
    """Print rows under a title to standard output.

    Args:
        title: Above the table.
        columns: Their names.
        rows: A text for each column.
        right: Names of columns that hold numbers.
    """
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(title=Text(title), title_justify="left", title_style="bold", box=box.SIMPLE_HEAD)
    for column in columns:
        justify = "right" if column in right else "left"
        table.add_column(Text(column), justify=justify, overflow="fold")  # type: ignore[arg-type]
    for row in rows:
        # Text, not markup: names may hold square brackets.
        table.add_row(*(Text(cell) for cell in row))
    is_terminal = sys.stdout.isatty()
    console = Console(file=sys.stdout, width=None if is_terminal else _PLAIN_WIDTH, highlight=False)
    console.print(table)


def shown_time(time_s: float) -> str:
    """Write when something was, in local time."""
    return datetime.datetime.fromtimestamp(time_s).strftime("%Y-%m-%d %H:%M")
