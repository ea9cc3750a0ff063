"""The closing table of a run, on standard output; or, for scripts, one JSON record."""

from __future__ import annotations

import json
import sys
from typing import TextIO

from torchkiln.core._console import make_console
from torchkiln.report._record import RunResult
from torchkiln.report._results_file import to_record
from torchkiln.report._rows import summary_groups

_PLAIN_WIDTH = 80
_STYLES = {"finished": "green", "interrupted": "yellow", "failed": "bold red"}


def print_summary(result: RunResult, *, stream: TextIO | None = None) -> None:
    """Print the figures of a run as a table that fits into 80 columns."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    console = make_console(stream, plain_width=_PLAIN_WIDTH, highlight=False)
    table = Table(box=box.ROUNDED, show_header=False, pad_edge=True)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for number, (title, rows) in enumerate(summary_groups(result).items()):
        if number:
            table.add_section()
        table.add_row(Text(title, style="bold cyan"), "")
        for name, text in rows:
            style = _style(result) if name == "Status" else ""
            # Text, not markup: names and notes may hold square brackets.
            table.add_row(Text(f"  {name}"), Text(text, style=style))
    console.print(table)


def _style(result: RunResult) -> str:
    return "yellow" if result.is_beaten else _STYLES[result.status]


def print_record(result: RunResult, *, stream: TextIO | None = None) -> None:
    """Print the run as one line of JSON, the content of `results.json`."""
    stream = sys.stdout if stream is None else stream
    stream.write(json.dumps(to_record(result), allow_nan=False) + "\n")
