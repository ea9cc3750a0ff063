"""Reading the files of a recording, also of processes that were killed or are still running."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torchkiln.core import StoreError
from torchkiln.profiling.system._recorder import FORMAT, HEADER

Event = dict[str, Any]
_BRACKETS = (b"[", b"]", b"")
# No event is near as long; a line without end is no line of ours.
_MAX_LINE_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Header:
    """How a file begins.

    Args:
        run: Name of the recording.
        wall_s: When the file was begun, in seconds of `time.time`.
        main: Whether it is that of the main process.
    """

    run: str
    wall_s: float
    main: bool


def read_header(path: Path) -> Header:
    """Return what a file says about itself.

    Raises:
        StoreError: It is no file of a recording.
        OSError: It cannot be read.
    """
    first = next(read_events(path), None)
    values = {} if first is None else first["args"]
    try:
        return Header(str(values["run"]), float(values["wall_s"]), bool(values["main"]))
    except (KeyError, TypeError, ValueError) as error:
        raise _foreign(path) from error


def read_events(path: Path) -> Iterator[Event]:
    """Yield the events of a file in its order; half an event at the end is left out.

    Raises:
        StoreError: It is no file of a recording, or damaged before its end.
        OSError: It cannot be read.
    """
    for number, line in enumerate(read_lines(path)):
        try:
            event = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise _foreign(path) if number == 0 else _damaged(path, number, error) from error
        if not isinstance(event, dict) or not isinstance(event.get("args", {}), dict):
            raise _foreign(path) if number == 0 else _damaged(path, number, "no event")
        if number == 0:
            _check_first(path, event)
        yield event


def read_lines(path: Path) -> Iterator[bytes]:
    """Yield the events of a file as JSON, those that are there as a whole."""
    with path.open("rb") as file:
        while line := file.readline(_MAX_LINE_BYTES):
            event = line.strip()
            if event in _BRACKETS:
                continue
            # What is followed by another line is whole. The last one of a process that was killed
            # may be half an event.
            if line.endswith(b"\n") or _is_whole(event):
                yield event.removesuffix(b",")


def _is_whole(line: bytes) -> bool:
    try:
        json.loads(line)
    except (ValueError, RecursionError):
        return False
    return True


def _check_first(path: Path, event: Event) -> None:
    if event.get("name") != HEADER or "args" not in event:
        raise _foreign(path)
    if event["args"].get("format") != FORMAT:
        raise StoreError(
            f"{path} is a system profile of another version of Torchkiln "
            f"({event['args'].get('torchkiln')}); show it with that version, or record it again"
        )


def _foreign(path: Path) -> StoreError:
    return StoreError(
        f"{path} is no system profile of Torchkiln's; pass a folder that PVTI_OPTIONS or "
        "torchkiln.profiling.record named, or a trace file in it"
    )


def _damaged(path: Path, number: int, why: object) -> StoreError:
    return StoreError(
        f"{path} is damaged: event {number + 1} cannot be read ({why}); if it was merged, merge "
        "again with `torchkiln profile merge`, or else record it again"
    )
