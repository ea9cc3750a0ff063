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

from torchkiln.core._errors import WriteError
from torchkiln.core._temporary import is_temporary, temporary_folder

# How file systems say that they have no locks.
_NO_LOCKS = {errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP}
_LOCK_FILE = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC


def make_folders(path: Path, *, own: bool = False) -> None:
    """Make `path` and every folder above it that is missing.

    Args:
        path: What is to be there.
        own: Let nobody else write to what is made, whatever the umask says.
    """
    if path.is_dir():
        return
    if path.parent != path:
        make_folders(path.parent, own=own)
    path.mkdir(mode=0o755 if own else 0o777, exist_ok=True)


@contextlib.contextmanager
def atomic_path(path: Path, *, own: bool = False) -> Iterator[Path]:
    """Yield a temporary path of the same name that becomes `path` when the block succeeds.

    The content is flushed to disk before the rename; on any error the temporary file is removed
    and `path` keeps what it had.

    Args:
        path: What is written.
        own: Let nobody else write it, whatever the umask says: for code that is run later.

    Raises:
        WriteError: The disk is full or cannot be written. Errors of the block that name another
            file pass as they are.
    """
    try:
        make_folders(path.parent, own=own)
        with temporary_folder(beside=path) as folder:
            temporary = folder / path.name
            # Some writers make private files; a shared cache or checkpoint follows the user's
            # umask, which a new file shows and which cannot be asked for without changing it.
            temporary.touch(0o644 if own else 0o666)
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


def write_atomic(path: Path, content: bytes | str, *, own: bool = False) -> None:
    """Replace the content of `path` in one step."""
    with atomic_path(path, own=own) as temporary:
        temporary.write_bytes(content.encode() if isinstance(content, str) else content)


@contextlib.contextmanager
def file_lock(
    path: Path, *, wait: bool = True, shared: bool = False, own: bool = False
) -> Iterator[bool]:
    """Hold a lock among processes; it ends with the process, so none goes stale.

    Yields whether it is held: on a file system without locks nobody can hold one, and the block
    runs without. The file may be removed by whoever holds the lock alone.

    Args:
        path: The file to lock, made if it is missing; links are not followed.
        wait: Whether to wait for others.
        shared: Whether others may hold it too, if they share it as well.
        own: Let nobody else write to the file and the folders that are made.

    Raises:
        BlockingIOError: Somebody holds it, and `wait` is off.
    """
    make_folders(path.parent, own=own)
    kind = (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | (0 if wait else fcntl.LOCK_NB)
    while True:
        descriptor = os.open(path, _LOCK_FILE, 0o644 if own else 0o666)
        try:
            held = _lock(descriptor, kind)
            # While this process waited, the file may have been removed and made anew by others.
            if not held or is_open_at(descriptor, path):
                yield held
                return
        finally:
            # Closing is not enough: a child that was forked meanwhile has a copy.
            with contextlib.suppress(OSError):
                fcntl.flock(descriptor, fcntl.LOCK_UN)
            os.close(descriptor)


def _lock(descriptor: int, kind: int) -> bool:
    """Return whether the lock is held; not if there are none here."""
    try:
        fcntl.flock(descriptor, kind)
    except OSError as error:
        if error.errno in _NO_LOCKS:
            return False
        raise
    return True


def is_open_at(descriptor: int, path: Path) -> bool:
    """Whether a descriptor is that of the file which has the name `path` now."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


def sha256_file(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
