"""Writing files so that nobody ever sees half of one."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from torchkiln.core._errors import WriteError
from torchkiln.core._temporary import is_temporary, temporary_folder


@contextlib.contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """Yield a temporary path of the same name that becomes `path` when the block succeeds.

    The content is flushed to disk before the rename; on any error the temporary file is removed
    and `path` keeps what it had.

    Raises:
        WriteError: The disk is full or cannot be written. Errors of the block that name another
            file pass as they are.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with temporary_folder(beside=path) as folder:
            temporary = folder / path.name
            # Some writers make private files; a shared cache or checkpoint follows the user's
            # umask, which a new file shows and which cannot be asked for without changing it.
            temporary.touch(0o666)
            mode = stat.S_IMODE(temporary.stat().st_mode)
            yield temporary
            with temporary.open("rb") as file:
                os.fsync(file.fileno())
                os.fchmod(file.fileno(), mode)
            os.replace(temporary, path)
    except WriteError:
        raise
    except OSError as error:
        if not _is_about(path, error):
            raise
        told = WriteError(
            f"{path} cannot be written ({error}); free some space, or write to another place"
        )
        told.errno = error.errno
        raise told from error


def _is_about(path: Path, error: OSError) -> bool:
    """Whether an error concerns writing `path`, and not some other file."""
    if error.filename is None or error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EIO):
        return True
    named, ours = (Path(os.path.abspath(os.fsdecode(p))) for p in (error.filename, path))
    is_above = ours.is_relative_to(named)  # the file itself, or a folder that it is in
    return is_above or any(is_temporary(place) for place in (named, *named.parents))


def write_atomic(path: Path, content: bytes | str) -> None:
    """Replace the content of `path` in one step."""
    with atomic_path(path) as temporary:
        temporary.write_bytes(content.encode() if isinstance(content, str) else content)


@contextlib.contextmanager
def file_lock(path: Path, *, wait: bool = True) -> Iterator[None]:
    """Hold an exclusive lock among processes; it ends with the process, so none goes stale.

    The file may be removed by whoever holds the lock.

    Raises:
        BlockingIOError: Somebody holds it, and `wait` is off.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    while True:
        with path.open("a") as file:
            fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            # While this process waited, the file may have been removed and made anew by others.
            if _is_open_at(file, path):
                try:
                    yield
                finally:
                    fcntl.flock(file, fcntl.LOCK_UN)
                return


def _is_open_at(file: IO[str], path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False


def sha256_file(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
