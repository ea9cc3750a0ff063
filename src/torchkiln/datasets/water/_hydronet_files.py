"""The files of the HydroNet release: xyz text in any wrapping, or PyG's npz arrays."""

from __future__ import annotations

import contextlib
import gzip
import re
import shutil
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import IO, cast

import numpy as np

from torchkiln.core import StoreError, read_npz
from torchkiln.datasets.water._frames import Frames, read_xyz_frames

# Better forms first, where one size is there in several: PyG's arrays round coordinates to 0.002
# angstrom and more.
_FORMS = (".xyz", ".xyz.gz", ".zip", ".tar.gz", ".tgz", ".tar", ".npz")
# W12_geoms_all.zip has clusters of 12; W3-W30_all_geoms_TTM2.1-F.zip has all sizes.
_ONE_SIZE = re.compile(r"W(\d+)(?!\d)(?![-_]W\d)", re.IGNORECASE)
# Archives within archives; the release has none, and one that holds itself would never end.
_MAX_LEVELS = 4


def find_files(root: Path) -> list[Path]:
    """Return the files with clusters below `root` (or `root` itself), by size of the clusters.

    Where there is a file for each size, these count, in their best form; otherwise all archives
    and xyz files that there are.

    Raises:
        StoreError: if there are none.
    """
    if root.is_file():
        return [root]
    if not root.is_dir():
        raise StoreError(f"{root} does not exist; name the folder with the files of HydroNet")
    files = sorted(path for path in root.rglob("*") if _form(path.name) and path.is_file())
    sized: dict[int, Path] = {}
    for path in sorted(files, key=lambda path: _FORMS.index(_form(path.name))):
        if (size := size_of(path.name)) is not None:
            sized.setdefault(size, path)
    if sized:
        return [sized[size] for size in sorted(sized)]
    whole = [path for path in files if _form(path.name) != ".npz" and "split" not in path.name]
    # W3-W30_pyg_processed.zip holds the same clusters as npz.
    found = [path for path in whole if "processed" not in path.name] or whole
    if not found:
        raise StoreError(
            f"{root} holds no water clusters; expected are W3_geoms_all.zip to W30_geoms_all.zip "
            f"(also {', '.join(_FORMS)}), or W3-W30_all_geoms_TTM2.1-F.zip, also in subfolders"
        )
    return found


def size_of(name: str) -> int | None:
    """Return how many molecules the clusters of a file have by its name; None: it does not say."""
    match = _ONE_SIZE.match(PurePosixPath(name).name)
    return int(match[1]) if match else None


def read_file(path: Path) -> Iterator[Frames]:
    """Yield all clusters of a file of HydroNet, those of one size together.

    Raises:
        StoreError: if it is damaged; the message names file and line.
    """
    label = str(path)
    try:
        with path.open("rb") as file:
            found = False
            for frames in _read(path.name, label, file):
                found = True
                yield frames
    except StoreError:
        raise
    # gzip, zipfile and tarfile raise a dozen kinds of errors for bytes that are not theirs.
    except Exception as error:
        raise StoreError(f"{label} cannot be read: {error}; copy it again") from error
    if not found:
        raise StoreError(f"{label} holds no water clusters (xyz frames or npz arrays)")


def _form(name: str) -> str:
    return next((form for form in _FORMS if name.lower().endswith(form)), "")


def _read(name: str, label: str, file: IO[bytes], level: int = 0) -> Iterator[Frames]:
    """Yield the clusters of an open file by the form that its name tells; others have none."""
    form = _form(name)
    if level > _MAX_LEVELS:
        raise StoreError(
            f"{label} lies within {level} archives, one in the other; unpack the file first"
        )
    if PurePosixPath(name).name.startswith(".") or "__MACOSX" in name:
        return
    if form == ".xyz":
        yield from read_xyz_frames(file, label, num_molecules=size_of(name))
    elif form == ".xyz.gz":
        with gzip.GzipFile(fileobj=file) as unpacked:
            yield from read_xyz_frames(
                cast(IO[bytes], unpacked), label, num_molecules=size_of(name)
            )
    elif form == ".npz":
        yield _read_npz(label, file)
    elif form == ".zip":
        with _seekable(file) as whole, zipfile.ZipFile(whole) as archive:
            for member in sorted(archive.namelist(), key=_by_size):
                with archive.open(member) as inner:
                    yield from _read(member, f"{label}/{member}", inner, level + 1)
    elif form:
        with _seekable(file) as whole, tarfile.open(fileobj=whole, mode="r:*") as tar:
            members = (member for member in tar.getmembers() if member.isfile())
            for entry in sorted(members, key=lambda member: _by_size(member.name)):
                opened = tar.extractfile(entry)
                if opened is not None:
                    yield from _read(entry.name, f"{label}/{entry.name}", opened, level + 1)


def _by_size(name: str) -> tuple[int, str]:
    return size_of(name) or 0, name


@contextlib.contextmanager
def _seekable(file: IO[bytes]) -> Iterator[IO[bytes]]:
    """Yield a file in which jumps are cheap: archives within archives are unpacked to disk."""
    if not isinstance(file, zipfile.ZipExtFile | tarfile.ExFileObject):
        yield file
        return
    with tempfile.TemporaryFile() as copy:
        shutil.copyfileobj(file, copy, 1 << 20)
        copy.seek(0)
        yield copy


def _read_npz(label: str, file: IO[bytes]) -> Frames:
    """Read the arrays that PyG's HydroNet keeps: z, pos (float16) and y."""
    try:
        with _seekable(file) as whole:
            arrays = read_npz(whole, label, names=("z", "pos", "y"))
        z, pos, y = arrays["z"], arrays["pos"], arrays["y"]
    except KeyError as error:
        raise StoreError(f"{label} does not hold the arrays z, pos and y: {error}") from error
    if any(array.dtype.kind not in "iuf" for array in (z, pos, y)):
        raise StoreError(
            f"{label} holds z, pos and y as {z.dtype}, {pos.dtype} and {y.dtype}; expected are "
            "numbers"
        )
    y = y.reshape(-1)
    fits = z.ndim == 2 and z.shape[1] % 3 == 0 and pos.shape == (*z.shape, 3)
    size = size_of(PurePosixPath(label).name)
    if not fits or len(y) != len(z) or (size is not None and z.shape[1] != 3 * size):
        raise StoreError(
            f"{label} has arrays of the shapes z {list(z.shape)}, pos {list(pos.shape)}, y "
            f"{list(y.shape)}; expected are [clusters, atoms], [clusters, atoms, 3], [clusters]"
        )
    bad = np.flatnonzero(
        ((z == 8).sum(1) * 3 != z.shape[1])
        | ((z != 8) & (z != 1)).any(1)
        | ~np.isfinite(pos).all((1, 2))
        | ~np.isfinite(y)
    )
    if len(bad):
        raise StoreError(
            f"{label}: cluster {bad[0]} has other atoms than water, or numbers that are not finite"
        )
    return Frames(z.astype(np.uint8), pos.astype(np.float64), y.astype(np.float64))
