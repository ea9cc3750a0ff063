"""The live screen: the table again and again, until Ctrl-C or q."""

from __future__ import annotations

import contextlib
import os
import select
import sys
import termios
import time
import tty
from collections.abc import Iterator

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from torchkiln.monitor._status import MachineStatus
from torchkiln.monitor._table import status_table
from torchkiln.monitor._watch import Watch


def show_live(console: Console, interval_s: float) -> None:
    """Show what runs until the person has seen enough."""
    watch = Watch()
    with (
        _single_keys() as keys,
        Live(console=console, screen=True, auto_refresh=False, transient=True) as live,
    ):
        while True:
            live.update(_screen(watch.look(), console), refresh=True)
            if _wait(keys, interval_s):
                return


def _screen(status: MachineStatus, console: Console) -> RenderableType:
    count = len(status.processes)
    head = Text.assemble(
        ("torchkiln monitor", "bold"),
        f"   {time.strftime('%H:%M:%S')}   {count} process{'es' * (count != 1)}",
        ("   q ends", "dim"),
    )
    return Group(head, Text(), status_table(status, console.width))


@contextlib.contextmanager
def _single_keys() -> Iterator[int | None]:
    """Yield where single keys can be read; None if there is no keyboard."""
    try:
        keyboard = sys.stdin.fileno()
        if not os.isatty(keyboard):
            raise OSError
        before = termios.tcgetattr(keyboard)
    except (OSError, ValueError, AttributeError, termios.error):
        yield None
        return
    try:
        tty.setcbreak(keyboard)  # Ctrl-C stays what it is
        yield keyboard
    finally:
        termios.tcsetattr(keyboard, termios.TCSADRAIN, before)


def _wait(keys: int | None, seconds: float) -> bool:
    """Wait; return whether the person pressed q meanwhile."""
    end_s = time.monotonic() + seconds
    while (left := end_s - time.monotonic()) > 0:
        if keys is None:
            time.sleep(left)
        elif select.select([keys], [], [], left)[0]:
            typed = os.read(keys, 64)
            if not typed or typed[:1] in (b"q", b"Q"):
                return True
    return False
