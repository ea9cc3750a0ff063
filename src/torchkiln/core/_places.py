"""Where things are kept that belong to the user rather than to a project."""

from __future__ import annotations

import os
from pathlib import Path

from torchkiln.core._files import make_folders
from torchkiln.core._room import free_bytes, megabytes
from torchkiln.core._temporary import ScratchDirectory
from torchkiln.core._trust import is_shared
from torchkiln.core._warnings import warn_user

# In the place of the user's cache, if that cannot be used. Made at most once.
_instead: list[ScratchDirectory] = []


def user_cache_dir() -> Path:
    """Return torchkiln's folder in the user's cache directory (`XDG_CACHE_HOME`, ~/.cache).

    Without a home it is a folder that goes with this process, which a warning says.
    """
    base = os.environ.get("XDG_CACHE_HOME")
    if base:
        return Path(base) / "torchkiln"
    try:
        return Path.home() / ".cache" / "torchkiln"
    except RuntimeError:
        return process_cache_dir("there is no home directory")


def writable_cache_dir(name: str, *, least_bytes: int = 0) -> Path:
    """Return the folder `name` in the user's cache, or one for this process if it is of no use.

    That is if it cannot be written, or has less room than `least_bytes`.
    """
    folder = user_cache_dir() / name
    try:
        make_folders(folder, own=not is_shared(folder))
        reason = "" if os.access(folder, os.W_OK | os.X_OK) else "it is read-only"
        free = free_bytes(folder)
        if not reason and free < least_bytes:
            reason = f"only {megabytes(free)} are free, of {megabytes(least_bytes)} that it takes"
    except OSError as error:
        reason = str(error)
    return process_cache_dir(f"{folder} cannot be used ({reason})") / name if reason else folder


def is_user_cache_given_up() -> bool:
    """Whether this process was told to do without the user's cache; a warning said so."""
    return bool(_instead)


def process_cache_dir(why: str) -> Path:
    """Return a private folder that goes with this process; say once why it is needed."""
    if not _instead or not _instead[-1].path.is_dir():
        _instead.append(ScratchDirectory())
        warn_user(
            f"{why}, so what is compiled goes to {_instead[-1].path} and is lost when this process "
            "ends; set XDG_CACHE_HOME to a folder of yours that can be written and locked (or "
            "TORCHINDUCTOR_CACHE_DIR and TORCHKILN_NATIVE_DIR)"
        )
    return _instead[-1].path
