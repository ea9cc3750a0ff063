"""Child processes of fault tests: started, watched, signalled, and never left behind."""

from __future__ import annotations

import contextlib
import os
import pty
import select
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil

REPOSITORY = Path(__file__).parents[2]
# Generous: machines are shared, and what hangs, hangs for ever.
PATIENCE_S = 240.0


def environment(**changes: str) -> dict[str, str]:
    """One thread, so that runs give the same bits."""
    # torch sets this one when it compiles in this process, to a folder that is not the child's.
    own = {name: v for name, v in os.environ.items() if name != "TORCHINDUCTOR_CACHE_DIR"}
    return {**own, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1", **changes}


def wait_until(condition: Callable[[], object], what: str) -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline_s, f"waited for ever: {what}"
        time.sleep(0.005)


def descendants(pid: int) -> list[psutil.Process]:
    with contextlib.suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).children(recursive=True)
    return []


def require_gone(processes: list[psutil.Process]) -> None:
    """Fail if one of them still runs after a moment; end it in any case."""
    _, left = psutil.wait_procs(processes, timeout=10)
    told = []
    for process in left:
        with contextlib.suppress(psutil.NoSuchProcess):
            if process.status() != psutil.STATUS_ZOMBIE:
                told.append(f"{process.pid} {process.cmdline()}")
                process.kill()
    assert not told, f"processes left behind: {told}"


@contextlib.contextmanager
def child(arguments: list[str], **keywords) -> Iterator[subprocess.Popen]:
    """Run this Python with arguments; whatever happens, nothing of it is left."""
    process = subprocess.Popen([sys.executable, *arguments], **keywords)
    try:
        yield process
    finally:
        family = descendants(process.pid)
        if process.poll() is None:
            process.kill()
            process.wait()
        for member in family:
            with contextlib.suppress(psutil.NoSuchProcess):
                member.kill()
        for stream in (process.stdout, process.stderr):
            if stream is not None:
                stream.close()


class Terminal:
    """A pseudo-terminal for a child to write to."""

    def __init__(self) -> None:
        self._mine, self.theirs = pty.openpty()
        self.settings_before = self.settings_after = self.settings()

    def settings(self) -> list[Any]:
        """Return how the terminal treats what is typed and shown."""
        return termios.tcgetattr(self._mine)

    def read_to_end(self) -> str:
        """Return everything that was written, once the last writer is gone, or after a long time.

        Fails for a writer that does not go; to end it is up to the caller.
        """
        os.close(self.theirs)
        deadline_s = time.monotonic() + PATIENCE_S
        chunks = []
        try:
            while chunk := self._read(deadline_s):
                chunks.append(chunk)
        finally:
            self.settings_after = self.settings()
            os.close(self._mine)
        return b"".join(chunks).decode(errors="replace")

    def _read(self, deadline_s: float) -> bytes:
        left_s = max(deadline_s - time.monotonic(), 0)
        ready, _, _ = select.select([self._mine], [], [], left_s)
        assert ready, "somebody holds the terminal for ever"
        try:
            return os.read(self._mine, 65536)
        except OSError:  # how Linux says that nobody holds the other side any more
            return b""


def end_marked(mark: str) -> list[str]:
    """Return what still runs with this mark after a moment; nothing does afterwards."""
    psutil.wait_procs(marked_processes(mark), timeout=5)
    left = []
    while found := [one for one in marked_processes(mark) if one.is_running()]:
        for process in found:
            with contextlib.suppress(psutil.Error):
                left.append(" ".join(process.cmdline()))
                process.kill()
        psutil.wait_procs(found, timeout=5)
    return left


def marked_processes(mark: str) -> list[psutil.Process]:
    """Return the processes with this text in their environment, whoever their parent is."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if mark in process.environ().values():
                found.append(process)
    return found
