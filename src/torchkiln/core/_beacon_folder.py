"""Where beacons lie, who may look, and how a dead owner is told from a living one.

Every process holds a lock on its beacon for life, by a descriptor that no child keeps. The system
lets go of it when the process ends, in whatever way. So a beacon that can be locked is a leftover.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import stat
from collections.abc import Iterator
from pathlib import Path

SUFFIX = ".beacon"
_SHARED_MEMORY = Path("/dev/shm")
_SESSIONS = Path("/run/user")
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# A pipe of that name must not make anybody wait.
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_MAKE = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
# A monitor that looks at the same moment holds the lock for microseconds.
_ATTEMPTS = 20


def folders() -> list[Path]:
    """Return where beacons of this user may lie, the preferred place first.

    A program that was started without a session (by cron, or over `su`) has another place than
    one that has one, so a monitor looks at all of them.
    """
    uid = os.geteuid()
    places = [_SESSIONS / str(uid)]
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    if os.path.isabs(runtime):
        places.insert(0, Path(runtime))
    # As the standard asks: an environment that was taken over from another user is not followed.
    inside = [place / "torchkiln" for place in dict.fromkeys(places) if _owner(place) == uid]
    return [*inside, _SHARED_MEMORY / f"torchkiln-{uid}"]


@contextlib.contextmanager
def private_beacon_folder(path: Path, *, make: bool) -> Iterator[int]:
    """Yield a descriptor of a folder that only this user can look into.

    Args:
        path: One of `folders()`.
        make: Whether to make it if it is missing.

    Raises:
        OSError: It is not there, cannot be made, is a link, or belongs to somebody else.
    """
    if make:
        with contextlib.suppress(FileExistsError):
            path.mkdir(mode=0o700)
    descriptor = os.open(path, _FOLDER)
    try:
        status = os.fstat(descriptor)
        if status.st_uid != os.geteuid():
            raise PermissionError(f"{path} belongs to somebody else")
        if stat.S_IMODE(status.st_mode) != 0o700:
            os.fchmod(descriptor, 0o700)
        yield descriptor
    finally:
        os.close(descriptor)


def make_locked(folder: int, prefix: str, suffix: str, mode: int) -> tuple[str, int]:
    """Make a file with a name of its own; return it with a descriptor that holds its lock.

    Args:
        folder: Descriptor of the folder.
        prefix: How the name begins.
        suffix: How it ends.
        mode: Its permissions, whatever the umask says.

    Raises:
        OSError: It cannot be made, or not be locked.
    """
    for _ in range(_ATTEMPTS):
        name = f"{prefix}{secrets.token_hex(4)}{suffix}"
        descriptor = os.open(name, _MAKE, 0o600, dir_fd=folder)
        try:
            os.fchmod(descriptor, mode)
            # Somebody may take the new file for a leftover before it is locked, and remove it.
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if _is_at(descriptor, name, folder):
                    return name, descriptor
        except BaseException:
            _drop(name, descriptor, folder)
            raise
        _drop(name, descriptor, folder)
    raise BlockingIOError("another process keeps locking new beacons")


def _drop(name: str, descriptor: int, folder: int) -> None:
    os.close(descriptor)
    with contextlib.suppress(FileNotFoundError):
        os.unlink(name, dir_fd=folder)


@contextlib.contextmanager
def open_beacon(name: str, folder: int) -> Iterator[int | None]:
    """Yield a descriptor to read a beacon by; None if its owner is dead, or it is no beacon.

    What a dead process of this user left is removed. The lock is held meanwhile, so that it cannot
    be a living one.
    """
    try:
        descriptor = os.open(name, _READ, dir_fd=folder)
    except OSError:
        yield None
        return
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            yield None
        elif is_locked(descriptor):
            yield descriptor
        else:
            if status.st_uid == os.geteuid() and _is_at(descriptor, name, folder):
                with contextlib.suppress(OSError):
                    os.unlink(name, dir_fd=folder)
            yield None
    finally:
        os.close(descriptor)


def is_locked(descriptor: int) -> bool:
    """Whether somebody holds the lock of a beacon; if not, this descriptor shares it from now on.

    A shared lock, so that two monitors that look at once do not take each other for the owner.
    """
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        pass  # nobody can lock here, so nobody did
    return False


def remove_leftovers(folder: int) -> None:
    """Remove the beacons of dead processes."""
    for name in beacon_names(folder):
        with open_beacon(name, folder):
            pass


def beacon_names(folder: int) -> list[str]:
    """Return the names of the beacons in a folder."""
    try:
        return sorted(name for name in os.listdir(folder) if name.endswith(SUFFIX))
    except OSError:
        return []


def _is_at(descriptor: int, name: str, folder: int) -> bool:
    try:
        found = os.stat(name, dir_fd=folder, follow_symlinks=False)
    except OSError:
        return False
    return os.path.samestat(found, os.fstat(descriptor))


def _owner(path: Path) -> int | None:
    try:
        return path.stat().st_uid
    except OSError:
        return None
