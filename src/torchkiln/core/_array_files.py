"""Arrays in .npz and .npy files, without pickle and without trust in what a header claims.

NumPy allocates an array before it reads it: a header of 100 bytes that promises a terabyte is
believed. Here, what is promised is compared with what the file can hold first.
"""

from __future__ import annotations

import io
import math
import zipfile
from collections.abc import Collection
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from torchkiln.core._errors import StoreError

if TYPE_CHECKING:
    from numpy.typing import NDArray

_HEADER_BYTES = 1 << 16  # NumPy itself refuses headers above 10,000 bytes
# No method of compression that zip knows and NumPy writes does better.
_MOST_PER_BYTE = 1032


def read_npz(
    file: Path | IO[bytes], label: object = None, *, names: Collection[str] | None = None
) -> dict[str, NDArray[Any]]:
    """Return the arrays of a .npz file by name.

    Args:
        file: Its path, or the open file.
        label: What to call it in errors; default: its path.
        names: Read only these; those that are missing are left out.

    Raises:
        StoreError: if it is no such file, is damaged, holds Python objects, or claims more than it
            can hold. A file that is not there is a `FileNotFoundError`.
    """
    label = file if label is None else label
    try:
        if isinstance(file, Path):
            with file.open("rb") as opened:
                return _read_members(opened, names)
        return _read_members(file, names)
    except (FileNotFoundError, NotADirectoryError):
        raise
    # zipfile, zlib and NumPy's parser of headers raise a dozen kinds of errors, also tokenize's.
    except Exception as error:
        raise StoreError(f"{label} is damaged or no npz file of arrays ({_said(error)})") from error


def read_npy(path: Path) -> NDArray[Any]:
    """Return the array of a .npy file.

    Raises:
        StoreError: as `read_npz`.
    """
    try:
        with path.open("rb") as file:
            return _read_array(file, path.stat().st_size)
    except (FileNotFoundError, NotADirectoryError):
        raise
    except Exception as error:  # as above
        raise StoreError(f"{path} is damaged or no npy file of numbers ({_said(error)})") from error


def _read_members(file: IO[bytes], names: Collection[str] | None) -> dict[str, NDArray[Any]]:
    length = file.seek(0, io.SEEK_END)
    file.seek(0)
    arrays: dict[str, NDArray[Any]] = {}
    with zipfile.ZipFile(file) as archive:
        for member in archive.infolist():
            name = member.filename.removesuffix(".npy")
            if names is not None and name not in names:
                continue
            if name in arrays:
                raise ValueError(f"{name!r} is there twice")
            # Both sizes are claims of the archive: neither can be more than the file has.
            packed = min(member.compress_size, length)
            most = packed if member.compress_type == zipfile.ZIP_STORED else packed * _MOST_PER_BYTE
            with archive.open(member) as opened:
                size = min(member.file_size, most)
                start = io.BytesIO(opened.read(min(_HEADER_BYTES, size)))
                try:
                    _check_claim(start, size)
                except ValueError as error:
                    raise ValueError(f"{name!r}: {error}") from error
            with archive.open(member) as opened:
                arrays[name] = _load(opened)
    return arrays


def _read_array(file: IO[bytes], size: int) -> NDArray[Any]:
    _check_claim(io.BytesIO(file.read(_HEADER_BYTES)), size)
    file.seek(0)
    return _load(file)


def _load(file: IO[bytes]) -> NDArray[Any]:
    import numpy as np

    array: NDArray[Any] = np.lib.format.read_array(file, allow_pickle=False)
    return array


def _check_claim(start: IO[bytes], size: int) -> None:
    """Raise if the header of an array promises more than the `size` bytes that there are."""
    import numpy as np

    version = np.lib.format.read_magic(start)
    # Version 3 differs from 2 in how it spells the names of fields, which nobody asks for here.
    read = (
        np.lib.format.read_array_header_1_0
        if version == (1, 0)
        else np.lib.format.read_array_header_2_0
    )
    shape, _, dtype = read(start)
    if dtype.hasobject:
        raise ValueError("it holds Python objects, which are not read")
    if any(length < 0 for length in shape):
        raise ValueError(f"no array has the shape {shape}")
    left = size - start.tell()
    # An array without entries must not claim length along other axes either: others loop over it.
    claimed = math.prod(max(length, 1) for length in shape) * max(dtype.itemsize, 1)
    if math.prod(shape) == 0 and max(shape, default=0) <= _HEADER_BYTES:
        return
    if claimed > left:
        raise ValueError(
            f"it claims an array of the shape {list(shape)}, {claimed:,} bytes, and has {left:,}"
        )


def _said(error: BaseException) -> str:
    if isinstance(error, MemoryError):
        return "there is not enough memory for it"
    text = " ".join(str(error).split())
    if isinstance(error, ValueError) and text:
        return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
