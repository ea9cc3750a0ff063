"""What a process tells other users of the machine, if its owner wants that: that it is there.

One small file in shared memory, where everybody may read and nobody may touch what others made. It
holds the number and the start of the process. Whose it is follows from the owner of the file.
"""

from __future__ import annotations

import os
import stat
import struct
from dataclasses import dataclass
from pathlib import Path

from torchkiln.core._beacon_folder import make_locked, open_beacon
from torchkiln.core._process_identity import is_running, pid_namespace

_PLACE = Path("/dev/shm")
_PREFIX = "torchkiln-public-"
_MAGIC = b"TKPUBLIC"
_FORMAT = 1
# Magic, format, unused, pid, namespace of the pid, start of the process in ticks.
_LINE = struct.Struct("=8sIIqQq")
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


@dataclass(frozen=True, slots=True)
class PublicLine:
    """A process of another user.

    Args:
        pid: Its number.
        uid: Whose it is.
        start_ticks: When it was started.
    """

    pid: int
    uid: int
    start_ticks: int


def publish(pid: int, ticks: int) -> tuple[Path, int]:
    """Tell everybody that a process is there, as long as the returned descriptor is open.

    Raises:
        OSError: There is no shared memory, or no room in it.
    """
    folder = os.open(_PLACE, _FOLDER)
    try:
        name, lock = make_locked(folder, _PREFIX, "", 0o644)
    finally:
        os.close(folder)
    line = _LINE.pack(_MAGIC, _FORMAT, 0, pid, pid_namespace(), ticks)
    try:
        os.pwrite(lock, line, 0)
    except BaseException:
        os.close(lock)
        (_PLACE / name).unlink(missing_ok=True)
        raise
    return _PLACE / name, lock


def read_public_lines() -> list[PublicLine]:
    """Return the processes of all users who want to be seen, this one's too.

    Anybody may have written anything there, so only what fits a living process of that user is
    believed.
    """
    found: list[PublicLine] = []
    try:
        folder = os.open(_PLACE, _FOLDER)
    except OSError:
        return found
    try:
        for name in sorted(os.listdir(folder)):
            if name.startswith(_PREFIX):
                with open_beacon(name, folder) as descriptor:
                    line = None if descriptor is None else _read(descriptor)
                if line is not None:
                    found.append(line)
    except OSError:
        pass
    finally:
        os.close(folder)
    return found


def _read(descriptor: int) -> PublicLine | None:
    status = os.fstat(descriptor)
    content = os.pread(descriptor, _LINE.size, 0)
    if len(content) != _LINE.size or status.st_size != _LINE.size:
        return None
    if not stat.S_ISREG(status.st_mode):
        return None
    magic, version, _, pid, namespace, ticks = _LINE.unpack(content)
    is_known = magic == _MAGIC and version == _FORMAT and namespace == pid_namespace()
    if not is_known or pid <= 0 or ticks <= 0 or not is_running(pid, ticks):
        return None
    owner = _owner_of(pid)
    return PublicLine(pid, status.st_uid, ticks) if owner in (None, status.st_uid) else None


def _owner_of(pid: int) -> int | None:
    """Return the user of a process; None if the system hides it."""
    try:
        return os.stat(f"/proc/{pid}").st_uid
    except OSError:
        return None
