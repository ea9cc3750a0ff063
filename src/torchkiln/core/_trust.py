"""Who could have written a file that is about to be executed.

Native code is run only if nobody but this user or root can have put it there: they own the file,
every folder above it and every link on the way, and nobody else may write to them. A folder that a
team shares is accepted if the user names it, as an option or in `TORCHKILN_TRUSTED_DIRS` (several
are separated as in PATH). Access lists beyond the classic permissions are not looked at.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path

from torchkiln.core._errors import TrustError

VARIABLE = "TORCHKILN_TRUSTED_DIRS"
# As many as Linux follows.
_MAX_LINKS = 40


def check_trusted(path: Path, trusted: Iterable[Path] = ()) -> None:
    """Return if the native code in `path` may be run; folders in `trusted` may hold anything.

    Raises:
        TrustError: Somebody else could have written it.
        FileNotFoundError: It is not there.
    """
    real = Path(os.path.realpath(path))
    named = [Path(os.path.realpath(folder)) for folder in (*trusted, *_named_folders())]
    if any(real.is_relative_to(folder) for folder in named):
        return
    for step, status in _steps(Path(os.path.abspath(path))):
        finding = _finding(status)
        if finding:
            raise TrustError(
                f"{path} is native code and is not run, because {step} {finding}. If you trust "
                f"everybody who can write there, set {VARIABLE}={real.parent} or pass "
                f"trusted_dirs=({str(real.parent)!r},) to Options; else change its owner or take "
                f"away the permission (chmod go-w {step})"
            )


def private_folder(path: Path) -> Path:
    """Make `path` if it is missing, and return it if it belongs to this user alone.

    Raises:
        TrustError: Somebody else owns it or a folder above it, or may write there.
    """
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    if path.stat().st_uid == os.geteuid() and stat.S_IMODE(path.stat().st_mode) & 0o077:
        path.chmod(0o700)
    check_trusted(path)
    return path


def _named_folders() -> list[Path]:
    return [Path(entry) for entry in os.environ.get(VARIABLE, "").split(os.pathsep) if entry]


def _steps(path: Path) -> Iterator[tuple[Path, os.stat_result]]:
    """Yield every folder, link and file that the system passes on the way to `path`."""
    current, rest = Path(path.anchor), list(path.parts[1:])
    yield current, current.lstat()
    links = 0
    while rest:
        part = rest.pop(0)
        if part == "..":
            current = current.parent
            continue
        step = current / part
        status = step.lstat()
        yield step, status
        if stat.S_ISLNK(status.st_mode):
            links += 1
            if links > _MAX_LINKS:
                raise TrustError(f"{path} is not run: too many links lead to it")
            target = Path(os.readlink(step))
            if target.is_absolute():
                current, rest = Path(target.anchor), [*target.parts[1:], *rest]
            else:
                rest = [*target.parts, *rest]
        else:
            current = step


def _finding(status: os.stat_result) -> str:
    """Say what is wrong with one step of the way; nothing if all is well."""
    if status.st_uid not in (0, os.geteuid()):
        return f"belongs to {_user_name(status.st_uid)}"
    if stat.S_ISLNK(status.st_mode):
        return ""  # who may change it follows from its folder
    # In a sticky folder such as /tmp only the owner of an entry can replace it.
    if stat.S_ISDIR(status.st_mode) and status.st_mode & stat.S_ISVTX:
        return ""
    if status.st_mode & stat.S_IWOTH:
        return "can be written by everybody"
    if status.st_mode & stat.S_IWGRP and not _is_private_group(status.st_gid):
        return "can be written by its group"
    return ""


def _is_private_group(gid: int) -> bool:
    """Whether nobody but this user or root is in a group (many systems give each user one)."""
    import grp
    import pwd

    with contextlib.suppress(KeyError):
        group, user = grp.getgrgid(gid), pwd.getpwuid(os.geteuid()).pw_name
        own = gid == 0 or (gid == os.getegid() and group.gr_name == user)
        return own and set(group.gr_mem) <= {user, "root"}
    return False


def _user_name(uid: int) -> str:
    import pwd

    try:
        return f"the user {pwd.getpwuid(uid).pw_name}"
    except KeyError:
        return f"the user with number {uid}"
