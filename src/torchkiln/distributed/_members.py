"""`Member`: a process of a run as the others know it, to find and to name it."""

from __future__ import annotations

import dataclasses
import enum
import json
import os
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import final

from torchkiln.core._process_identity import is_running, pid_namespace, start_ticks
from torchkiln.core._threads import usable_cores


class Condition(enum.Enum):
    """What can be seen of a process from here."""

    RUNNING = "running"
    STOPPED = "stopped"
    ENDED = "ended"
    UNKNOWN = "unknown"  # on another host, or in another container


@final
@dataclass(frozen=True, slots=True)
class Member:
    """One process of a run.

    Args:
        rank: Its number in the run.
        host: The name of its machine or container.
        machine: What tells two machines of the same name apart.
        pid: Its number on that machine.
        namespace: What that number is valid in.
        ticks: When it was started, which tells it from a later process with that number.
        cores: On which it may run.
    """

    rank: int
    host: str
    machine: str
    pid: int
    namespace: int
    ticks: int
    cores: tuple[int, ...] = ()

    def __str__(self) -> str:
        return f"rank {self.rank} (process {self.pid} on {self.host})"

    @property
    def place(self) -> tuple[str, str]:
        """What the processes on one host have in common."""
        return self.host, self.machine

    def condition(self) -> Condition:
        """Return whether the process still runs, as far as it can be seen from here."""
        if self.machine != _machine() or self.namespace != pid_namespace():
            return Condition.UNKNOWN
        if not is_running(self.pid, self.ticks):
            return Condition.ENDED
        return Condition.STOPPED if _is_stopped(self.pid) else Condition.RUNNING


def this_member(rank: int) -> Member:
    """Return what the others should know about this process."""
    pid = os.getpid()
    return Member(
        rank,
        socket.gethostname(),
        _machine(),
        pid,
        pid_namespace(),
        start_ticks(pid) or 0,
        tuple(sorted(usable_cores())),
    )


def member_to_json(member: Member) -> str:
    """Return what `member_from_json` makes the same member of."""
    return json.dumps(dataclasses.asdict(member))


def member_from_json(text: str) -> Member:
    """Return a member from the text that it wrote about itself."""
    fields = json.loads(text)
    return Member(**{**fields, "cores": tuple(fields["cores"])})


def _machine() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return socket.gethostname()


def _is_stopped(pid: int) -> bool:
    try:
        text = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return False
    return text.rpartition(b")")[2].split()[:1] in ([b"T"], [b"t"])
