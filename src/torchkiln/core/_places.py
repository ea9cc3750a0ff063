"""Where things are kept that belong to the user rather than to a project."""

from __future__ import annotations

import os
from pathlib import Path

from torchkiln.core._files import make_folders
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


def writable_cache_dir(name: str) -> Path:
    """Return the folder `name` in the user's cache, or one for this process if it is read-only."""
    folder = user_cache_dir() / name
    try:
        make_folders(folder, own=not is_shared(folder))
        reason = "" if os.access(folder, os.W_OK | os.X_OK) else "it is read-only"
    except OSError as error:
        reason = str(error)
    return process_cache_dir(f"{folder} cannot be used ({reason})") / name if reason else folder


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
