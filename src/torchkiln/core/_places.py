"""Where things are kept that belong to the user rather than to a project."""

from __future__ import annotations

import os
from pathlib import Path


def user_cache_dir() -> Path:
    """Return torchkiln's folder in the user's cache directory (`XDG_CACHE_HOME`, ~/.cache)."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "torchkiln"
