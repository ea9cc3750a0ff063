"""Who could have written a file that is about to be executed.

Native code is run only if nobody but this user or root can have put it there: they own the file,
every folder above it and every link on the way, and nobody else may write to them. A folder that a
team shares is accepted if the user names it, as an option or in `TORCHKILN_TRUSTED_DIRS` (several
are separated as in PATH). Access lists beyond the classic permissions are not looked at.
"""

from __future__ import annotations

import os
import shlex
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path

from torchkiln.core._errors import OptionsError, TrustError
from torchkiln.core._files import make_folders
from torchkiln.core._users import is_private_group, is_unmapped_owner, user_name

VARIABLE = "TORCHKILN_TRUSTED_DIRS"
# As many as Linux follows.
_MAX_LINKS = 40


def check_trusted(path: Path, trusted: Iterable[Path] | None = None) -> None:
    """Return if the native code in `path` may be run.

    Args:
        path: A file, or a folder of which each file is checked before it is run.
        trusted: Folders that may hold anything; None where the caller has no such option, and
            only the variable helps.

    Raises:
        TrustError: Somebody else could have written it.
        FileNotFoundError: It is not there.
    """
    if is_shared(path, trusted or ()):
        return
    steps = list(_steps(Path(os.path.abspath(path))))
    for number, (step, status) in enumerate(steps, 1):
        finding = _finding(status, last=number == len(steps))
        if finding:
            raise _error(path, step, status, finding, may_pass=trusted is not None)


def check_trusted_folder(path: Path) -> None:
    """Return if everything in `path` may be run without looking at each file.

    Raises:
        TrustError: Somebody else could have put something there.
    """
    _check_nobody_adds(path, f"use a new folder, or name it in {VARIABLE} if you trust them")
    check_trusted(path)


def private_folder(path: Path) -> Path:
    """Make `path` if it is missing, and return it if it belongs to this user alone.

    One that others can only read is closed to them. If they could write there it is not: what they
    put there would stay.

    Raises:
        TrustError: Somebody else owns it or a folder above it, or may write there.
    """
    shared = is_shared(path)
    make_folders(path.parent, own=not shared)
    path.mkdir(mode=0o777 if shared else 0o700, exist_ok=True)
    _check_nobody_adds(path, f"delete it (rm -r {shlex.quote(str(path))})")
    check_trusted(path)
    status = path.stat()
    if not shared and status.st_uid == os.geteuid() and stat.S_IMODE(status.st_mode) & 0o077:
        path.chmod(0o700)
    return path


def is_shared(path: Path, trusted: Iterable[Path] = ()) -> bool:
    """Whether the user named a folder of `path` as trusted: others write there as well."""
    real = Path(os.path.realpath(path))
    named = (Path(os.path.realpath(folder)) for folder in (*trusted, *_named_folders()))
    return any(real.is_relative_to(folder) for folder in named)


def _named_folders() -> list[Path]:
    entries = [entry for entry in os.environ.get(VARIABLE, "").split(os.pathsep) if entry]
    folders = [Path(os.path.expanduser(entry)) for entry in entries]
    for entry, folder in zip(entries, folders, strict=True):
        if not folder.is_absolute():
            raise OptionsError(
                f"{VARIABLE} names {entry!r}, which is another folder wherever a program starts; "
                "write whole paths, which begin with / or ~"
            )
    return folders


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


def _finding(status: os.stat_result, *, last: bool) -> str:
    """Say what is wrong with one step of the way; nothing if all is well."""
    if not _is_own_or_roots(status, last=last):
        return f"belongs to {user_name(status.st_uid)}"
    if stat.S_ISLNK(status.st_mode):
        return ""  # who may change it follows from its folder
    # In a sticky folder such as /tmp only the owner of an entry can replace it.
    if stat.S_ISDIR(status.st_mode) and status.st_mode & stat.S_ISVTX:
        return ""
    if status.st_mode & stat.S_IWOTH:
        return "can be written by everybody"
    if status.st_mode & stat.S_IWGRP and not is_private_group(status.st_gid):
        return "can be written by its group"
    return ""


def _is_own_or_roots(status: os.stat_result, *, last: bool) -> bool:
    if status.st_uid in (0, os.geteuid()):
        return True
    # In a namespace without root, folders of root's look like anybody's. Whoever owns them can put
    # nothing there that is this user's, so it is enough that the last step is.
    return not last and is_unmapped_owner(status.st_uid)


def _check_nobody_adds(path: Path, remedy: str) -> None:
    """Refuse a folder that others may write to, also if it is sticky: they can add to it."""
    status = path.stat()
    by_group = status.st_mode & stat.S_IWGRP and not is_private_group(status.st_gid)
    if (by_group or status.st_mode & stat.S_IWOTH) and not is_shared(path):
        raise TrustError(
            f"{path} could be written by others, so what lies in it may not be yours; {remedy}"
        )


def _error(
    path: Path, step: Path, status: os.stat_result, finding: str, *, may_pass: bool
) -> TrustError:
    real = Path(os.path.realpath(path))
    place = real if real.is_dir() else real.parent
    option = f" or pass trusted_dirs=({str(place)!r},) to Options" if may_pass else ""
    if status.st_uid == os.geteuid():
        remedy = f"take away the permission (chmod go-w {shlex.quote(str(step))})"
    else:
        remedy = "use a place where all folders are yours or root's and only you may write"
    error = TrustError(
        f"{path} is native code and is not run, because {step} {finding}. If you trust everybody "
        f"who can write there, set {VARIABLE}={place}{option}; else {remedy}"
    )
    error.option = option
    return error
