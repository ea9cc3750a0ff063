"""Tables for people, as wide as there is room."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from rich.console import Console

_PLAIN_WIDTH = 120
_WIDEST = 160  # beyond, the eye loses the line


def make_console(
    stream: TextIO | None = None, *, plain_width: int = _PLAIN_WIDTH, **settings: Any
) -> Console:
    """Return rich's console on `stream`, which is standard output by default.

    It is as wide as the terminal, or as COLUMNS says. In files and pipes it is `plain_width` wide,
    so that a table looks the same whatever terminal the command was started from.
    """
    from rich.console import Console

    stream = sys.stdout if stream is None else stream
    measured = stream.isatty() or os.environ.get("COLUMNS", "").isdecimal()
    console = Console(file=stream, width=None if measured else plain_width, **settings)
    if console.width > _WIDEST:
        console = Console(file=stream, width=_WIDEST, **settings)
    return console
