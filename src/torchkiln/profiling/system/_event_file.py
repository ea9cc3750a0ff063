"""The file of one process: events as a JSON array, one a line, each on disk as soon as it happens.

A file ends with a bracket if its process ended in peace. Without it, and even with half a line at
its end, the file is still one that Perfetto and `read_events` open: so a killed run leaves all that
it did. Events are handed to the system one by one, because only that survives the process; one
takes a few microseconds, which is little beside a batch or a step.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import final

_OPEN = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC


@final
class EventFile:
    """Events go in, as JSON; whole ones only come to lie on the disk, if it is not full.

    Args:
        path: A file that is not there yet; links are not followed.
        first: The first event.

    Raises:
        FileExistsError: There is such a file.
        OSError: It cannot be made or written.
    """

    def __init__(self, path: Path, first: str) -> None:
        self.path = path
        self._descriptor = os.open(path, _OPEN, 0o666)
        self._num_bytes = 0
        try:
            self._append(f"[\n{first}")
        except OSError:
            self.abandon()
            path.unlink(missing_ok=True)
            raise

    def write(self, event: str) -> None:
        """Add an event.

        Raises:
            OSError: The disk is full, say; the file keeps the events before this one.
        """
        self._append(f",\n{event}")

    def close(self) -> None:
        """End the array.

        Raises:
            OSError: As in `write`; the file is closed all the same.
        """
        try:
            self._append("\n]\n")
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Let the file go as it is; for a forked child, which has its parent's."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _append(self, text: str) -> None:
        content = text.encode()
        done = os.write(self._descriptor, content)
        try:
            while done < len(content):  # a disk that has room for a part of it
                done += os.write(self._descriptor, content[done:])
        except OSError:
            os.ftruncate(self._descriptor, self._num_bytes)
            raise
        self._num_bytes += len(content)
