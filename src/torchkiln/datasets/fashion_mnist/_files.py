"""Where the four files of Fashion-MNIST are, and what is in them."""

from __future__ import annotations

import gzip
import math
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from torchkiln.core import StoreError

# Debian's package dataset-fashion-mnist.
_DEBIAN = Path("/usr/share/datasets/fashion-mnist")
_IMAGES, _LABELS = 2051, 2049
# name: (magic number, sizes)
FILES: dict[str, tuple[int, tuple[int, ...]]] = {
    "train-images-idx3-ubyte": (_IMAGES, (60_000, 28, 28)),
    "train-labels-idx1-ubyte": (_LABELS, (60_000,)),
    "t10k-images-idx3-ubyte": (_IMAGES, (10_000, 28, 28)),
    "t10k-labels-idx1-ubyte": (_LABELS, (10_000,)),
}


@dataclass(frozen=True, slots=True)
class IdxFile:
    """One of the files, checked: `path` may end in .gz, `sizes` are those of its array."""

    path: Path
    sizes: tuple[int, ...]


def find_fashion_mnist(root: Path | None = None) -> list[IdxFile]:
    """Return the four files in the order of `FILES`, each checked from its first to last byte.

    Args:
        root: Folder with the files, plain or .gz, or one above torchvision's `FashionMNIST/raw`;
            default: where Debian's package puts them.

    Raises:
        StoreError: if one is missing or damaged; it says what to put where.
    """
    paths = {name: _locate(root, name) for name in FILES}
    for name, path in paths.items():
        _read(path, *FILES[name])
    return [IdxFile(path, FILES[name][1]) for name, path in paths.items()]


def read_idx(root: Path | None, name: str) -> NDArray[np.uint8]:
    """Return the array of one of `FILES`, which may not be written to.

    Raises:
        StoreError: as `find_fashion_mnist`.
    """
    return _read(_locate(root, name), *FILES[name])


def _locate(root: Path | None, name: str) -> Path:
    for path in _candidates(root or _DEBIAN, name):
        if path.is_file():
            return path
    raise StoreError(
        f"{root or _DEBIAN} holds no {name} or {name}.gz; install Debian's package "
        f"dataset-fashion-mnist, or put {', '.join(FILES)} (plain or .gz, as its authors and "
        "torchvision offer them) into a folder and name that as root"
    )


def _candidates(folder: Path, name: str) -> Iterator[Path]:
    for place in (folder, folder / "FashionMNIST" / "raw", folder / "raw"):
        yield place / name
        yield place / f"{name}.gz"


def _read(path: Path, magic: int, sizes: tuple[int, ...]) -> NDArray[np.uint8]:
    header = struct.pack(f">{1 + len(sizes)}I", magic, *sizes)
    expected = len(header) + math.prod(sizes)
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            content = file.read(expected + 1)  # what is longer is another file anyway
    except (OSError, EOFError, zlib.error) as error:
        raise StoreError(f"{path} is damaged ({error}); copy it again") from error
    start = content[: len(header)]
    if start != header:
        shown = struct.unpack(f">{len(start) // 4}I", start[: len(start) // 4 * 4])
        raise StoreError(
            f"{path} begins with {list(shown)} instead of {[magic, *sizes]} (magic number and "
            "sizes); it is another file, copy it again"
        )
    if len(content) != expected:
        fault = (
            f"truncated: it holds {len(content)} bytes instead of"
            if len(content) < expected
            else "too long: it holds more than the"
        )
        raise StoreError(f"{path} is {fault} {expected} that it should have; copy it again")
    array = np.frombuffer(content, np.uint8, offset=len(header)).reshape(sizes)
    if magic == _LABELS and array.max() > 9:
        index = int(array.argmax())
        raise StoreError(
            f"{path} has label {array[index]} at {index}, but there are 10 classes, 0 to 9; "
            "copy it again"
        )
    return array
