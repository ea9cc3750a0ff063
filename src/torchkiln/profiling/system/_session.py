"""Which recording a process takes part in, and how it tells the processes that it starts."""

from __future__ import annotations

import itertools
import json
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from torchkiln.profiling.system._options import RecordOptions

SUFFIX = ".trace.json"
# Launchers that start every rank themselves: who starts one, its rank, and how many there are.
_LAUNCHERS = (
    ("TORCHELASTIC_RUN_ID", "RANK", "WORLD_SIZE"),
    ("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
)
_CLOSED = b"]\n"
# Of the recordings that this process began.
_numbers = itertools.count(1)


@dataclass(frozen=True, slots=True)
class Session:
    """One recording, the same in all processes that take part.

    Args:
        directory: Gets one file a process; absolute.
        run: Its name, with which the names of all its files begin.
        main_pid: The process that began it, and with which it ends.
        channels: Only these; None: all.
        end_ns: When it ends, in nanoseconds of `time.perf_counter`, which is the same in all
            processes; None: with the main process.
        rank: Of the main process, where there are several; None: it is alone.
    """

    directory: Path
    run: str
    main_pid: int
    channels: frozenset[str] | None = None
    end_ns: int | None = None
    rank: int | None = None

    @classmethod
    def new(cls, options: RecordOptions) -> Self:
        """Begin a recording with this process as the main one."""
        now_ns, seconds = time.perf_counter_ns(), options.duration_s
        rank, number = find_rank(), next(_numbers)
        name = _run_name() if rank is None else _launch_name()
        return cls(
            directory=options.directory.absolute(),
            run=name if number == 1 else f"{name}-{number}",
            main_pid=os.getpid(),
            channels=options.channels,
            end_ns=None if seconds is None else now_ns + int(seconds * 1e9),
            rank=rank,
        )

    @property
    def is_main(self) -> bool:
        return self.main_pid == os.getpid()

    def path_of(self, pid: int, number: int = 1) -> Path:
        """Return the file of a process; `number` counts processes that had the same id."""
        more = "" if number == 1 else f"-{number}"
        return self.directory / f"{self.run}.{pid}{more}{SUFFIX}"

    def is_over(self) -> bool:
        """Whether the main process has ended the recording; asks the disk."""
        try:
            with self.path_of(self.main_pid).open("rb") as file:
                file.seek(-len(_CLOSED), os.SEEK_END)
                return file.read() == _CLOSED
        except OSError:
            return True  # there is none, or none any more: somebody cleared the folder

    def to_text(self) -> str:
        """Return the session for processes that are started, which `from_text` reads."""
        values = {
            "directory": str(self.directory),
            "run": self.run,
            "main_pid": self.main_pid,
            "channels": None if self.channels is None else sorted(self.channels),
            "end_ns": self.end_ns,
            "rank": self.rank,
        }
        return json.dumps(values)

    @classmethod
    def from_text(cls, text: str) -> Self | None:
        """Return the session of the process that started this one; None if it is none."""
        try:
            values: dict[str, Any] = json.loads(text)
            channels = values.pop("channels")
            return cls(
                directory=Path(values.pop("directory")),
                channels=None if channels is None else frozenset(channels),
                **values,
            )
        except (ValueError, TypeError, KeyError, AttributeError):
            return None


def _run_name() -> str:
    return f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"


def find_rank() -> int | None:
    """Return the number of this process among those that a launcher started; None: it is alone."""
    for launcher, rank, world in _LAUNCHERS:
        if launcher in os.environ and os.environ.get(world, "1") not in ("", "0", "1"):
            number = os.environ.get(rank, "")
            return int(number) if number.isdecimal() else None
    return None


def _launch_name() -> str:
    """Return a name that all ranks find by themselves: the launcher's process and its birth."""
    parent = os.getppid()
    try:
        # After the name in brackets, which may hold anything; the 22nd value is the start.
        started = Path(f"/proc/{parent}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        started = "0"
    return f"launch-{parent}-{started}"
