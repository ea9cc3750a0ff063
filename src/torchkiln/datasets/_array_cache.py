"""Arrays that are computed once and kept in a file."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torchkiln.core import (
    StoreError,
    atomic_path,
    clean_leftovers,
    clean_leftovers_once,
    is_shared,
    read_npz,
    user_cache_dir,
    warn_user,
)

Arrays = dict[str, NDArray[Any]]
# By dataset, folder and names of what `cached_arrays` keeps. There may be other things beside it:
# the directory may be one of the user's own.
_KEPT = {"qm9": (".", "qm9-*.npz"), "water": ("water", "*.npz")}


def data_dir() -> Path:
    """Return `TORCHKILN_DATA_DIR`, or torchkiln's folder in the user's cache directory."""
    named = os.environ.get("TORCHKILN_DATA_DIR")
    return Path(named) if named else user_cache_dir()


def cached_arrays(
    name: str, build: Callable[[], Arrays], *, names: Collection[str] | None = None
) -> Arrays:
    """Return the arrays kept as `name` in the data directory, or build and keep them.

    Whatever determines the arrays belongs into the name. A damaged file is replaced, with a
    warning; where nothing can be written, arrays are built each time, with a warning too.

    Args:
        name: Of the file, without its suffix.
        build: Called if there is none.
        names: Those of the arrays that `build` returns; a file with others is damaged.
    """
    path = data_dir() / f"{name}.npz"
    clean_leftovers_once(path.parent)
    try:
        kept = read_npz(path, "it")
        if names is None or kept.keys() == set(names):
            return kept
        warn_user(f"{path} is damaged (it holds {', '.join(sorted(kept))}) and is made anew")
    except (FileNotFoundError, NotADirectoryError):
        pass
    except StoreError as error:
        warn_user(f"{path} is damaged ({error}) and is made anew")
    arrays = build()
    try:
        # In the user's cache, native code lies beside it: the folders must be the user's own.
        own = not os.environ.get("TORCHKILN_DATA_DIR") and not is_shared(path)
        with atomic_path(path, own=own) as temporary, temporary.open("wb") as target:
            np.savez(target, allow_pickle=False, **arrays)
    except OSError as error:
        # What took minutes to compute is not thrown away for a full disk.
        warn_user(
            f"{path} cannot be written ({error.__cause__ or error}), so it is made anew each "
            "time; set TORCHKILN_DATA_DIR to a folder with room"
        )
    return arrays


def kept_files(dataset: str) -> list[Path]:
    """Return the files that the data directory holds of a dataset ("qm9" or "water")."""
    folder, names = _KEPT[dataset]
    return sorted((data_dir() / folder).glob(names))


def clear_kept(*, dry_run: bool = False) -> list[tuple[Path, int]]:
    """Delete everything that is kept of all datasets, also what was left when writing was killed.

    Nothing else is touched, and nothing outside of the data directory: a folder that is a link out
    of it is not entered.

    Args:
        dry_run: Delete nothing.

    Returns:
        What was (or would be) deleted, with its size in bytes.
    """
    found: list[Path] = []
    for folder, names in _KEPT.values():
        place = data_dir() / folder
        if place.resolve().is_relative_to(data_dir().resolve()):
            found += sorted([*place.glob(names), *place.glob(f".{names}.*.tmp")])
            if not dry_run:
                clean_leftovers(place)  # what `atomic_path` leaves when it is killed
    cleared = [(path, path.lstat().st_size) for path in found]
    if not dry_run:
        for path in found:
            path.unlink(missing_ok=True)
    return cleared
