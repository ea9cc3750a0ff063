"""What processes take of the machine, asked of the system."""

from __future__ import annotations

import os
import pwd
import time
from pathlib import Path

import psutil

from torchkiln.monitor._status import ResourceStatus


class ResourceReader:
    """Remembers how much each process had computed, to tell how much it computes."""

    def __init__(self) -> None:
        self._before: dict[tuple[int, int], tuple[float, float]] = {}

    def read(self, pid: int, start_ticks: int) -> ResourceStatus | None:
        """Return what a process takes; None if it ended meanwhile."""
        try:
            process = psutil.Process(pid)
            with process.oneshot():
                times = process.cpu_times()
                memory = process.memory_info().rss
                num_threads = process.num_threads()
                is_stopped = process.status() in (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP)
            num_children = len(process.children(recursive=True))
        except psutil.Error:
            return None
        now, busy = time.monotonic(), times.user + times.system
        before = self._before.get((pid, start_ticks))
        self._before[pid, start_ticks] = (now, busy)
        cores = None
        if before is not None and now > before[0]:
            cores = max(busy - before[1], 0.0) / (now - before[0])
        peak = peak_memory(pid)
        return ResourceStatus(
            memory_bytes=memory,
            # The system sums both up at different times.
            peak_bytes=None if peak is None else max(peak, memory),
            num_threads=num_threads,
            cpu_cores=cores,
            num_children=num_children,
            is_stopped=is_stopped,
        )


def peak_memory(pid: int) -> int | None:
    """Return the most memory that a process ever held, in bytes."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        line = next(line for line in lines if line.startswith("VmHWM:"))
        return int(line.split()[1]) * 1024
    except (OSError, StopIteration, ValueError, IndexError):
        return None


def name_of_user(uid: int | None = None) -> str:
    """Return the name of an account, or its number; this process' by default."""
    uid = os.geteuid() if uid is None else uid
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
