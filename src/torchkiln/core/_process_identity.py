"""Which process a number stands for: numbers are used again, and differ between containers."""

from __future__ import annotations

import functools
import os
import time
from pathlib import Path

_PROC = Path("/proc")


def start_ticks(pid: int) -> int | None:
    """Return when a process was started, in ticks since the machine was; None: it cannot be told.

    A process that ended and was not yet waited for counts as gone.
    """
    try:
        text = (_PROC / str(pid) / "stat").read_bytes()
        # The name in brackets may hold anything, brackets too.
        columns = text.rpartition(b")")[2].split()
        return None if columns[0] in (b"Z", b"X") else int(columns[19])
    except (OSError, ValueError, IndexError):
        return None


@functools.cache
def pid_namespace() -> int:
    """Return the number of the namespace that this process' numbers are of; 0: there are none."""
    try:
        return (_PROC / "self" / "ns" / "pid").stat().st_ino
    except OSError:
        return 0


def is_running(pid: int, ticks: int) -> bool:
    """Whether a process of this namespace still runs, and is not a later one of that number.

    Args:
        pid: Its number.
        ticks: What `start_ticks` said of it; 0: nothing.
    """
    now = start_ticks(pid)
    if now is not None:
        return ticks in (0, now)
    # Some systems hide the processes of others, but still say that they are there.
    if (_PROC / str(pid)).exists():
        return False  # ended, and not yet waited for
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return ticks == 0 or not (_PROC / "self").exists()


def seconds_since(ticks: int) -> float:
    """Return how long ago a process was started that `start_ticks` said this of."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
