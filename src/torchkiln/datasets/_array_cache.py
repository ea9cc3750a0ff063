"""Arrays that are computed once and kept in a file."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torchkiln.core import atomic_path, warn_user

Arrays = dict[str, NDArray[Any]]


def data_dir() -> Path:
    """Return `TORCHKILN_DATA_DIR`, or torchkiln's folder in the user's cache directory."""
    named = os.environ.get("TORCHKILN_DATA_DIR")
    if named:
        return Path(named)
    cache = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path.home() / ".cache") / "torchkiln"


def cached_arrays(name: str, build: Callable[[], Arrays]) -> Arrays:
    """Return the arrays kept as `name` in the data directory, or build and keep them.

    Whatever determines the arrays belongs into the name. A damaged file is replaced, with a
    warning.
    """
    path = data_dir() / f"{name}.npz"
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as kept:
            return dict(kept)
    except FileNotFoundError:
        pass
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        warn_user(f"{path} is damaged ({error}) and is made anew")
    arrays = build()
    with atomic_path(path) as temporary, temporary.open("wb") as target:
        np.savez(target, allow_pickle=False, **arrays)
    return arrays
