"""Where executables are kept if nobody says otherwise."""

from __future__ import annotations

from pathlib import Path

from torchkiln.core._options import Options
from torchkiln.core._places import user_cache_dir


def default_cache_dir() -> Path:
    """Return where commands keep executables, so that a second start need not compile.

    `POPTORCH_CACHE_DIR`, or a folder in the user's cache directory.
    """
    named = Options().cache_dir
    if named is not None:
        return named
    return user_cache_dir() / "executables"
