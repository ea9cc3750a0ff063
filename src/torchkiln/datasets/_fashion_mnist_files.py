"""Where the four files of Fashion-MNIST are, and whether they are whole."""

from __future__ import annotations

import gzip
import math
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from torchkiln.core import StoreError

# Debian's package dataset-fashion-mnist.
_DEBIAN = Path("/usr/share/dataset-fashion-mnist")
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
    found = []
    for name, (magic, sizes) in FILES.items():
        path = next((path for path in _candidates(root, name) if path.is_file()), None)
        if path is None:
            raise StoreError(
                f"{root or _DEBIAN} holds no {name} or {name}.gz; install Debian's package "
                f"dataset-fashion-mnist, or put {', '.join(FILES)} (plain or .gz) into a folder "
                "and name it with --root"
            )
        _check(path, magic, sizes)
        found.append(IdxFile(path, sizes))
    return found


def _candidates(root: Path | None, name: str) -> Iterator[Path]:
    folder = root or _DEBIAN
    for place in (folder, folder / "FashionMNIST" / "raw", folder / "raw"):
        yield place / name
        yield place / f"{name}.gz"


def _check(path: Path, magic: int, sizes: tuple[int, ...]) -> None:
    header = struct.pack(f">{1 + len(sizes)}I", magic, *sizes)
    expected = len(header) + math.prod(sizes)
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            start = file.read(len(header))
            length = len(start)
            while piece := file.read(2**20):
                length += len(piece)
    except (OSError, EOFError, zlib.error) as error:
        raise StoreError(f"{path} is damaged ({error}); copy it again") from error
    if start != header:
        shown = struct.unpack(f">{len(start) // 4}I", start[: len(start) // 4 * 4])
        raise StoreError(
            f"{path} begins with {list(shown)} instead of {[magic, *sizes]} (magic number and "
            "sizes); it is another file, copy it again"
        )
    if length != expected:
        raise StoreError(f"{path} holds {length} bytes instead of {expected}; copy it again")
