"""The split files of HydroNet, which number clusters through all sizes."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torchkiln.core import OptionsError, StoreError, read_npz

Indices = dict[str, NDArray[np.int64]]

# How files name the parts: HydroNet first.
_NAMES = {
    "train": ("train_idx", "train"),
    "validation": ("val_idx", "val", "validation"),
    "test": ("test_idx", "test"),
}


def read_split_file(name: str | Path, root: Path | None) -> Indices:
    """Return the clusters for "train", "validation" and "test" of a split file.

    Clusters are numbered as PyG does: all of W3 in the order of the file, then all of W4, and so
    on. A part that the file does not name is empty; PyG's `split_00_small.npz` has no test.

    Args:
        name: The .npz file itself, or its name below `root` or in a `hydronet_splits.zip` there.
        root: The folder of the release.

    Raises:
        OptionsError: if there is no such file.
        StoreError: if it is damaged.
    """
    path = _find(Path(name), root)
    try:
        if path.suffix == ".zip":
            with zipfile.ZipFile(path) as archive:
                member = next(
                    one for one in archive.namelist() if Path(one).name == Path(name).name
                )
                with archive.open(member) as file:
                    content = read_npz(file, member)
        else:
            content = read_npz(path, "it")
    # zipfile and zlib raise a dozen kinds of errors for bytes that are not theirs.
    except Exception as error:
        raise StoreError(
            f"{path} cannot be read as a split file: {error}; copy it again"
        ) from error
    empty = np.empty(0, dtype=np.int64)
    splits = {
        part: _numbers(next((content[name] for name in names if name in content), empty), path)
        for part, names in _NAMES.items()
    }
    if not len(splits["train"]):
        raise StoreError(
            f"{path} names no clusters for training; it has {', '.join(sorted(content))}, expected "
            "are train_idx, val_idx and test_idx"
        )
    named = np.concatenate(list(splits.values()))
    if len(np.unique(named)) < len(named) or (len(named) and named.min() < 0):
        raise StoreError(f"{path} names a cluster in two parts, or one with a negative number")
    return {part: np.sort(indices) for part, indices in splits.items()}


def _numbers(values: NDArray[Any], path: Path) -> NDArray[np.int64]:
    if values.ndim != 1 or (values.dtype.kind not in "iu" and len(values)):
        raise StoreError(
            f"{path} holds {values.dtype} {list(values.shape)} instead of a list of whole numbers; "
            "name another file"
        )
    return values.astype(np.int64)


def _find(name: Path, root: Path | None) -> Path:
    if name.is_file():
        return name
    below = [] if root is None or not root.is_dir() else sorted(root.rglob("*"))
    for path in below:
        if path.name == name.name and path.is_file():
            return path
    for path in below:
        if path.suffix == ".zip" and "split" in path.name:
            try:
                with zipfile.ZipFile(path) as archive:
                    members = archive.namelist()
            except Exception as error:  # as above
                raise StoreError(f"{path} cannot be read: {error}; copy it again") from error
            if any(Path(one).name == name.name for one in members):
                return path
    raise OptionsError(f"there is no split file {name}" + (f" below {root}" if root else ""))
