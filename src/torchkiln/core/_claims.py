"""Folders that belong to one process at a time, and folders that do not stay behind empty."""

from __future__ import annotations

import contextlib
import fcntl
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from torchkiln.core._files import is_open_at

LOCK_NAME = ".lock"

# Folders that this process claims: record locks do not keep a process from itself.
_claimed: set[tuple[int, Path]] = set()
_claiming = threading.Lock()


class Claimed(Exception):  # noqa: N818 - a finding for the caller, who knows the remedy
    """Somebody has the folder already.

    Args:
        by_this_process: Whether it is this very process.
    """

    def __init__(self, *, by_this_process: bool) -> None:
        super().__init__("by this process" if by_this_process else "by another process")
        self.by_this_process = by_this_process


@contextlib.contextmanager
def made_folder(path: Path, *, is_new: bool = False) -> Iterator[None]:
    """Make a folder; afterwards remove it, and folders above that were made for it, if it is empty.

    So a command that is refused or fails leaves nothing behind that a person must explain.

    Args:
        path: What is to be there.
        is_new: Whether it is an error if it is there already.

    Raises:
        FileExistsError: It is there and `is_new` is on, or it is a file.
        OSError: It cannot be made.
    """
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    path.mkdir(parents=True, exist_ok=not is_new)
    try:
        yield
    finally:
        # Whatever is used by then, also by others, is not empty and stays.
        with contextlib.suppress(OSError):
            for folder in missing:
                folder.rmdir()


@contextlib.contextmanager
def claimed_folder(
    path: Path, *, is_new: bool = False, is_lock_kept: bool = True
) -> Iterator[None]:
    """Make a folder and keep other processes from claiming it too.

    The claim ends with the process at the latest. If nothing was put into the folder, it does not
    stay behind.

    Args:
        path: The folder.
        is_new: Whether it is an error if it is there already.
        is_lock_kept: Whether the hidden file that is locked stays in a folder with content.

    Raises:
        Claimed: This process or another one has it.
        OSError: It cannot be made; see `made_folder`.
    """
    with made_folder(path, is_new=is_new):
        place = (os.getpid(), path.resolve())
        with _claiming:
            if place in _claimed:
                raise Claimed(by_this_process=True)
            # Not opened twice: closing a second handle would end the lock of the first.
            file = _lock(path / LOCK_NAME)
            _claimed.add(place)
        try:
            with file:
                try:
                    yield
                finally:
                    _remove(path / LOCK_NAME, only_if_alone=is_lock_kept)
        finally:
            _claimed.discard(place)


def is_claimed(path: Path) -> bool:
    """Whether a process has claimed a folder now."""
    with _claiming:
        if (os.getpid(), path.resolve()) in _claimed:
            return True
        try:
            with (path / LOCK_NAME).open("r+") as file:
                fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:  # there is none, or it is somebody else's
            return False
    return False


def _lock(path: Path) -> IO[str]:
    while True:
        path.parent.mkdir(parents=True, exist_ok=True)  # who left it last may have removed it
        file = path.open("a")
        try:
            # A record lock, unlike flock, is not shared with forked loader processes, which
            # may outlive a killed run for a moment.
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Whoever had it before may have removed the file since it was opened.
            if is_open_at(file.fileno(), path):
                return file
        except OSError:
            file.close()
            raise Claimed(by_this_process=False) from None
        file.close()


def _remove(lock: Path, *, only_if_alone: bool) -> None:
    """Remove a lock while it is held, or only if there is nothing else in the folder."""
    with contextlib.suppress(OSError):
        if not only_if_alone or [path.name for path in lock.parent.iterdir()] == [lock.name]:
            lock.unlink()
