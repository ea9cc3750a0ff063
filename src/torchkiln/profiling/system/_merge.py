"""The files of all processes of a run as one, which Perfetto opens.

All processes of a machine read the same clock, and viewers put events in order themselves: so a
merge is all events, one file after the other.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from torchkiln.core import StoreError, atomic_path, file_lock
from torchkiln.profiling.system._reader import read_header, read_lines
from torchkiln.profiling.system._session import SUFFIX

MERGED = "trace.json"
_LOCK = ".trace.lock"
_SAFE_NAME = re.compile(r"[A-Za-z0-9-]{1,100}")


@dataclass(frozen=True, slots=True)
class RecordedRun:
    """The files of one run.

    Args:
        name: Of the run.
        wall_s: When it began.
        parts: The files of its processes, the main one's first.
    """

    name: str
    wall_s: float
    parts: tuple[Path, ...]


def find_runs(directory: Path) -> list[RecordedRun]:
    """Return the runs whose files are in a folder, newest first; other files are passed over.

    Raises:
        OSError: The folder cannot be read.
    """
    found: dict[str, list[tuple[bool, float, Path]]] = {}
    for path in sorted(directory.iterdir()):
        if not path.name.endswith(SUFFIX):
            continue
        # Somebody else's, or that of a process which was killed before it could say anything.
        with contextlib.suppress(StoreError, OSError):
            header = read_header(path)
            found.setdefault(header.run, []).append((not header.main, header.wall_s, path))
    runs = [
        RecordedRun(
            name, min(wall_s for _, wall_s, _ in files), tuple(p for *_, p in sorted(files))
        )
        for name, files in found.items()
    ]
    return sorted(runs, key=lambda run: -run.wall_s)


def merge(directory: str | os.PathLike[str], output: str | os.PathLike[str] | None = None) -> Path:
    """Put the files of all processes of the newest run in a folder together into one.

    The main process does this at its end. It is left to you if that was killed, or if processes
    went on for longer.

    Args:
        directory: Of the recording.
        output: What to write; None: `trace.json` in the folder.

    Returns:
        The file that was written.

    Raises:
        StoreError: There is no recording in the folder, or a file of it is damaged.
        WriteError: The file cannot be written.
    """
    folder = Path(directory)
    try:
        runs = find_runs(folder)
    except OSError as error:
        raise StoreError(
            f"{folder} cannot be read ({error.strerror}); pass the folder of a recording"
        ) from error
    if not runs:
        raise StoreError(
            f'there is no recording in {folder}; PVTI_OPTIONS=\'{{"directory":"{folder}"}}\' '
            "in the environment of a run makes one"
        )
    path = folder / MERGED if output is None else Path(output)
    merge_parts(runs[0].parts, path)
    return path


def merge_run(directory: Path, name: str, *, has_ranks: bool) -> None:
    """Merge one run into `trace.json`; nothing is written if its files are gone.

    Args:
        directory: With its files.
        name: Of the run.
        has_ranks: Whether other main processes may do the same now. The last one has all files.
    """
    lock = file_lock(directory / _LOCK) if has_ranks else contextlib.nullcontext()
    with lock:
        for run in find_runs(directory):
            if run.name == name:
                merge_parts(run.parts, directory / MERGED)
        if has_ranks:
            (directory / _LOCK).unlink(missing_ok=True)


def merge_parts(parts: Iterable[Path], output: Path) -> None:
    """Write the events of all `parts` to `output`, in one step."""
    with atomic_path(output) as temporary, temporary.open("wb") as file:
        before = b"[\n"
        for part in parts:
            for line in read_lines(part):
                file.write(before + line)
                before = b",\n"
        file.write(b"\n]\n")


def set_aside_older(directory: Path, name: str) -> None:
    """Give a `trace.json` of an earlier run that run's name, so that nobody takes it for `name`'s.

    It would stay there if this run were killed.
    """
    path = directory / MERGED
    with contextlib.suppress(StoreError, OSError):
        earlier = read_header(path).run
        if earlier != name and _SAFE_NAME.fullmatch(earlier):
            path.rename(directory / f"trace-{earlier}.json")
