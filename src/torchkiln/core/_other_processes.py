"""How much of the cores other processes take, read from Linux' own counters.

The kernel counts how long each core was busy, and how long each process ran. What the cores did
beyond this process and everything it started was done for others. Reading both takes milliseconds.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field
from pathlib import Path

from torchkiln.core._threads import usable_cores

_PROC = Path("/proc")
# Columns of /proc/stat that are work: user, nice, system, irq, softirq. Not idle, waiting for a
# disk, or what a hypervisor gave to others.
_WORK = (0, 1, 2, 5, 6)
# Counters move in steps of a hundredth of a second: in less time than this they tell nothing.
_LEAST_SECONDS = 0.3
# From this share on, others are what a run waits for.
_MOSTLY = 0.5


@dataclass(frozen=True, slots=True)
class OtherLoad:
    """What other processes did in a span of time.

    Args:
        cores: That this process may use.
        used: How many of these were busy for others, on average.
        busiest: The process that used most of it: "python train.py (process 4711)"; empty if it
            cannot be seen from here, as in a container.
        busiest_used: How many cores that one used.
    """

    cores: int
    used: float
    busiest: str = ""
    busiest_used: float = 0.0

    @property
    def is_high(self) -> bool:
        """Whether others take most of the cores."""
        return self.used >= _MOSTLY * self.cores

    def __str__(self) -> str:
        text = f"other processes use {self.used:.1f} of {self.cores} cores"
        if not self.busiest:
            return text
        rank = "most of it" if self.busiest_used > self.used / 2 else "the busiest is"
        return f"{text}, {rank} {self.busiest} with {self.busiest_used:.1f}"


@dataclass(frozen=True, slots=True)
class _Process:
    parent: int
    name: str
    # Ticks of its own, and with those of children that ended.
    own: int
    total: int


@dataclass(frozen=True, slots=True)
class Reading:
    """The counters at one moment; `load_since` compares two."""

    at_s: float = field(default_factory=time.monotonic)
    work: dict[int, int] = field(default_factory=lambda: _read_work(usable_cores()))
    processes: dict[int, _Process] = field(default_factory=lambda: _read_processes())

    def load_since(self, earlier: Reading) -> OtherLoad | None:
        """Return what others did between two readings; None if that cannot be told.

        That is where the system has no such counters, or if hardly any time has passed.
        """
        seconds = self.at_s - earlier.at_s
        cores = self.work.keys() & earlier.work.keys()
        if seconds < _LEAST_SECONDS or not cores:
            return None
        ticks = seconds * os.sysconf("SC_CLK_TCK")
        work = sum(self.work[core] - earlier.work[core] for core in cores)
        family = _family(self.processes, os.getpid())
        own = sum(self._ticks(pid, earlier, with_children=True) for pid in family)
        others = {
            pid: self._ticks(pid, earlier, with_children=False)
            for pid in self.processes.keys() - family
        }
        left = work - own
        if len(cores) == os.cpu_count():
            # A core's counter samples who runs when its clock ticks, and misses what sleeps and
            # wakes between two ticks. Those of processes are exact.
            left = max(left, sum(others.values()))
        used = min(max(left, 0) / ticks, float(len(cores)))
        pid = max(others, key=lambda pid: others[pid], default=None)
        if pid is None or not others[pid]:
            return OtherLoad(len(cores), used)
        name = f"{_program(pid) or self.processes[pid].name} (process {pid})"
        # It may have run on cores that this process may not use.
        return OtherLoad(len(cores), used, name, min(others[pid] / ticks, used))

    def _ticks(self, pid: int, earlier: Reading, *, with_children: bool) -> int:
        now, before = self.processes[pid], earlier.processes.get(pid)
        if with_children:
            return now.total - (before.total if before else 0)
        return now.own - (before.own if before else 0)


def _read_work(cores: set[int]) -> dict[int, int]:
    """Return the ticks that each core worked since the machine was started; empty: unknown."""
    try:
        lines = (_PROC / "stat").read_text().splitlines()
    except OSError:
        return {}
    work = {}
    for line in lines:
        name, *columns = line.split()
        number = name.removeprefix("cpu")
        if name.startswith("cpu") and number.isdecimal() and int(number) in cores:
            work[int(number)] = sum(int(columns[column]) for column in _WORK)
    return work


def _read_processes() -> dict[int, _Process]:
    """Return all processes that can be seen from here, by their numbers."""
    found = {}
    try:
        numbers = [name for name in os.listdir(_PROC) if name.isdecimal()]
    except OSError:
        return {}
    for number in numbers:
        try:
            with open(f"{_PROC}/{number}/stat", "rb", buffering=0) as file:
                text = file.read()
        except OSError:
            continue  # ended meanwhile
        # The name in brackets may hold anything, brackets too.
        before, _, after = text.rpartition(b")")
        columns = after.split()
        user, system, children_user, children_system = map(int, columns[11:15])
        found[int(number)] = _Process(
            parent=int(columns[1]),
            name=before.partition(b"(")[2].decode(errors="replace"),
            own=user + system,
            total=user + system + children_user + children_system,
        )
    return found


def _program(pid: int) -> str:
    """Return what a process runs, with its script; not its arguments, which may be secret."""
    try:
        words = (_PROC / str(pid) / "cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return ""
    script = words[1] if len(words) > 1 and words[1].endswith((".py", ".sh")) else ""
    return " ".join(os.path.basename(word) for word in (words[0], script) if word)


def _family(processes: dict[int, _Process], founder: int) -> set[int]:
    """Return a process and all that it started, directly or not."""
    children: dict[int, list[int]] = {}
    for pid, process in processes.items():
        children.setdefault(process.parent, []).append(pid)
    family, waiting = set(), [founder]
    while waiting:
        pid = waiting.pop()
        if pid not in family and pid in processes:
            family.add(pid)
            waiting += children.get(pid, [])
    return family
