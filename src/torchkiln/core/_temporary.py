"""Temporary folders that can be told from everything else, and whose leftovers are cleaned.

Whatever is written goes first into a hidden folder beside its place:

    .<name>.<eight random characters>.torchkiln-tmp/

The maker holds a lock on the folder for as long as it lives. A folder of this form that nobody
holds was left by a process that was killed, and the next process that writes there removes it.
A whole folder rather than a file, because native writers (safetensors, HDF5, Inductor) put
temporary files of their own beside the one they were asked for.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import stat
import tempfile
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import final

from torchkiln.core._errors import WriteError

_SUFFIX = ".torchkiln-tmp"
_OWN_NAME = re.compile(r"\..*\.[a-z0-9_]{8}" + re.escape(_SUFFIX), re.DOTALL)
# File systems allow 255 bytes; the rest is the random part and the suffix.
_MAX_LABEL_BYTES = 200
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC

# Cleaned by this process already: leftovers come from earlier ones.
_cleaned: set[str] = set()


@final
class TemporaryFolder:
    """A private folder that goes with its owner, and with the next start if that was killed.

    Args:
        parent: Where it is made.
        label: Part of its name, so that a person can tell what it was for.
    """

    def __init__(self, parent: Path, label: str) -> None:
        clean_leftovers_once(parent)
        self.path, lock = _make(parent, label)
        self._remove = weakref.finalize(self, _remove_own, self.path, lock, os.getpid())

    def remove(self) -> None:
        # Not by calling it: that does nothing any more while the interpreter exits, when some
        # files are written still.
        if (detached := self._remove.detach()) is not None:
            _, function, arguments, _ = detached
            function(*arguments)


@contextlib.contextmanager
def temporary_folder(beside: Path) -> Iterator[Path]:
    """Yield a private folder beside `beside`, on the same file system; it is removed afterwards."""
    folder = TemporaryFolder(beside.parent, beside.name)
    try:
        yield folder.path
    finally:
        folder.remove()


class ScratchDirectory:
    """A temporary directory that goes with its owner, quietly.

    Raises:
        WriteError: The disk is full or cannot be written.
    """

    def __init__(self) -> None:
        place = tempfile.gettempdir()
        try:
            self._folder = TemporaryFolder(Path(place), "scratch")
        except OSError as error:
            raise WriteError(
                f"no temporary folder can be made in {place} ({error}); free some space, or set "
                "TMPDIR to another place"
            ) from error
        self.path = self._folder.path

    def remove(self) -> None:
        self._folder.remove()


def clean_leftovers(directory: Path) -> None:
    """Remove temporary folders that killed processes of this user left in `directory`.

    Nothing else is touched, and what cannot be removed now is left for another time.
    """
    with contextlib.suppress(OSError), os.scandir(directory) as entries:
        for entry in entries:
            if _OWN_NAME.fullmatch(entry.name):
                with contextlib.suppress(OSError):
                    _remove_leftover(entry.path)


def is_temporary(path: Path) -> bool:
    """Whether a path has the name of a temporary folder of Torchkiln's."""
    return _OWN_NAME.fullmatch(path.name) is not None


def clean_leftovers_once(directory: Path) -> None:
    """Do `clean_leftovers` unless this process did it: what it finds comes from earlier ones.

    For places that Torchkiln fills by itself: who finds there what it wants writes nothing, and
    would leave what an earlier process left.
    """
    name = os.path.abspath(directory)
    if name not in _cleaned:
        _cleaned.add(name)
        clean_leftovers(directory)


def _make(parent: Path, label: str) -> tuple[Path, int]:
    """Make a folder and return it with the descriptor that holds its lock."""
    short = os.fsdecode(os.fsencode(label)[:_MAX_LABEL_BYTES])
    while True:
        path = Path(tempfile.mkdtemp(dir=parent, prefix=f".{short}.", suffix=_SUFFIX))
        # Another process may take the new folder for a leftover before the lock is held.
        with contextlib.suppress(FileNotFoundError):
            lock = os.open(path, _FOLDER)
            if _try_lock(lock) and path.exists():
                return path, lock
            os.close(lock)


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        pass  # a file system without locks: nobody can lock here, so nobody cleans
    return True


def _remove_own(path: Path, lock: int, maker: int) -> None:
    # A forked child has a copy of the owner, but the folder is not its own.
    if os.getpid() != maker:
        return
    try:
        shutil.rmtree(path, ignore_errors=True)
    finally:
        os.close(lock)


def _remove_leftover(path: str) -> None:
    descriptor = os.open(path, _FOLDER)
    try:
        status = os.fstat(descriptor)
        if stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid():
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(path, ignore_errors=True)
    finally:
        os.close(descriptor)
