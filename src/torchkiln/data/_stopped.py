"""Worker processes that are stopped (SIGSTOP, SIGTSTP): they neither work nor end.

Whoever waits for one may be deep in foreign code, waiting for half a message. So a thread looks now
and then, and kills a worker that stays stopped: that ends every wait.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any

# Somebody who moves a process or lets it wait lets it go on.
_PATIENCE_S = 60.0
_LOOK_S = 1.0


def watch_stopped(owner: object, pids: Sequence[int]) -> list[int]:
    """Kill processes that are stopped for a minute, for as long as `owner` lives.

    Those that a debugger holds are left to it. Without /proc nobody can tell, and none is killed.

    Returns:
        A list that will hold those that were killed.
    """
    killed: list[int] = []
    if not _read(os.getpid())[0]:
        return killed
    gone: list[Any] = []
    # Not a finalizer in Python: torch's handler of SIGCHLD may raise in the middle of one.
    until = weakref.ref(owner, gone.append)
    threading.Thread(
        target=_watch,
        args=({pid: _read(pid)[1] for pid in pids}, until, gone, killed),
        name="torchkiln-watch",
        daemon=True,
    ).start()
    return killed


def describe_stopped(pid: int) -> str:
    """Return what to tell about a process that was stopped."""
    return (
        f"process (pid {pid}) was stopped (SIGSTOP or SIGTSTP) for {_PATIENCE_S:.0f} s "
        "and was ended; let it go on in time (kill -CONT), and begin the pass "
        "anew"
    )


def _watch(
    started: dict[int, str], _until: weakref.ref[Any], gone: list[Any], killed: list[int]
) -> None:
    since_s: dict[int, float] = {}
    while not gone:
        time.sleep(min(_LOOK_S, _PATIENCE_S / 2))
        now_s = time.monotonic()
        for pid, start in started.items():
            # The number of a process that is gone may be that of another one by now.
            if _read(pid) != ("T", start):
                since_s.pop(pid, None)
            elif now_s - since_s.setdefault(pid, now_s) >= _PATIENCE_S:
                killed.append(pid)
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                since_s.pop(pid)


def _read(pid: int) -> tuple[str, str]:
    """Return the state of a process and when it was started; where there is no /proc, nothing."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return "", ""
    # The name of the program stands before, in parentheses, and may hold anything.
    fields = status.rpartition(")")[2].split()
    return fields[0], fields[19]
