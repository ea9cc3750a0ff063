"""Where the seconds between a command and its first training step go. No torch up here."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import final


@final
class StartupClock:
    """A stopwatch that was started with the process.

    Its first part is "interpreter": everything before this object was made.
    """

    def __init__(self) -> None:
        self._made = self._last = time.perf_counter()
        self._seconds: dict[str, float] = {}

    def lap(self, part: str) -> None:
        """Give the time since the last lap to `part`, which may have some already."""
        now = time.perf_counter()
        self._seconds[part] = self._seconds.get(part, 0.0) + now - self._last
        self._last = now

    def to_record(self) -> dict[str, float]:
        """Return the seconds of each part in order, and their sum as "total"."""
        before = max(_age_of_process_s() - (time.perf_counter() - self._made), 0.0)
        return {
            "interpreter": before,
            **self._seconds,
            "total": before + self._last - self._made,
        }

    def __str__(self) -> str:
        record = self.to_record()
        width = max(map(len, record))
        total = record["total"] or 1.0
        rows = (f"  {part:<{width}}  {s:7.2f} s  {s / total:4.0%}" for part, s in record.items())
        return "\n".join(["seconds to the first step:", *rows])


def _age_of_process_s() -> float:
    """Return how long this process has been running, to a hundredth; 0 where nobody knows.

    psutil adds the time of booting, which Linux tells in whole seconds: useless for parts of one.
    """
    try:
        # The name in brackets may hold anything; the 20th field after it is the start, in ticks.
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        started_s = int(fields[19]) / os.sysconf("SC_CLK_TCK")
        return time.clock_gettime(time.CLOCK_BOOTTIME) - started_s
    except (OSError, ValueError, IndexError, AttributeError):
        return 0.0
