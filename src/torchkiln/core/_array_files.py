"""Arrays in .npz and .npy files, without pickle and without trust in what a header claims.

NumPy allocates an array before it reads it: a header of 100 bytes that promises a terabyte is
believed. Here, what is promised is compared with what the file can hold first.
"""

from __future__ import annotations

import contextlib
import io
import math
import os
import zipfile
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from torchkiln.core._errors import Unreadable

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

# Deflate writes at least one bit for 129 bytes; no other method is written by NumPy.
_MOST_PER_BYTE = 1032
_CHUNK_BYTES = 2**24
_END64_BYTES = 56 + 20  # of a large archive's last record, and of what tells where it begins
_HEADER_BYTES = 1 << 16  # NumPy itself refuses headers above 10,000 bytes


def read_npz(
    file: Path | IO[bytes], label: object = None, *, names: Collection[str] | None = None
) -> dict[str, NDArray[Any]]:
    """Return the arrays of a .npz file by name; their checksums are verified.

    Args:
        file: Its path, or the open file.
        label: What to call it in errors; default: its path.
        names: Read only these; those that are missing are left out.

    Raises:
        Unreadable: if it is no such file, is damaged, holds Python objects, or claims more than it
            can hold. A file that is not there is a `FileNotFoundError`.
    """
    with _one_error(file if label is None else label, "npz file of arrays"), _opened(file) as whole:
        return _read_members(whole, names)


def read_npy(file: Path | IO[bytes], label: object = None) -> NDArray[Any]:
    """Return the array of a .npy file.

    Raises:
        Unreadable: as `read_npz`.
    """
    kind = "npy file of numbers"
    with _one_error(file if label is None else label, kind), _opened(file) as whole:
        return _read_array(whole, _remaining(whole))[0]


def _read_members(file: IO[bytes], names: Collection[str] | None) -> dict[str, NDArray[Any]]:
    size = _remaining(file)
    arrays: dict[str, NDArray[Any]] = {}
    with zipfile.ZipFile(file) as archive:
        members = archive.infolist()
        if len(members) != _num_members(file, archive):
            raise ValueError("its table of contents is damaged")
        if sum(member.compress_size for member in members) > size:
            raise ValueError(f"its parts take more than its {size} bytes")
        for member in members:
            name = member.filename.removesuffix(".npy")
            if names is not None and name not in names:
                continue
            if name == member.filename:
                raise ValueError(f"{name!r} in it is no array")
            if name in arrays:
                raise ValueError(f"{name!r} is there twice")
            try:
                arrays[name] = _read_member(archive, member)
            except ValueError as error:
                raise ValueError(f"{name!r}: {error}") from error
    return arrays


def _num_members(file: IO[bytes], archive: zipfile.ZipFile) -> int:
    """Return how many parts there should be; a flipped bit may make one hide the next."""
    end = file.seek(-(22 + len(archive.comment)), os.SEEK_END)
    count = int.from_bytes(file.read(12)[10:], "little")
    if count < 0xFFFF or end < _END64_BYTES:
        return count
    # More do not fit into two bytes: then a longer record stands before this one.
    file.seek(end - _END64_BYTES)
    record = file.read(_END64_BYTES)
    return int.from_bytes(record[32:40], "little") if record.startswith(b"PK\x06\x06") else count


def _read_member(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> NDArray[Any]:
    if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise ValueError("it is compressed in an unknown way")
    if member.file_size > _MOST_PER_BYTE * member.compress_size:
        raise ValueError(f"it claims {member.file_size} bytes and takes {member.compress_size}")
    with archive.open(member) as stream:
        array, rest = _read_array(stream, member.file_size)
        if rest or stream.read(1):  # to the end, where the checksum is compared
            raise ValueError("it holds more than its array")
        return array


def _read_array(file: IO[bytes], num_bytes: int) -> tuple[NDArray[Any], bytes]:
    """Read an array from a file that has `num_bytes` left; return also what was read beyond it."""
    import numpy as np

    # A part of the file: headers, too, claim a length, and NumPy makes room for it.
    start = io.BytesIO(file.read(min(num_bytes, _HEADER_BYTES)))
    version = np.lib.format.read_magic(start)
    # Version 3 differs from 2 in how it spells the names of fields, which nobody asks for here.
    read_header = (
        np.lib.format.read_array_header_1_0
        if version == (1, 0)
        else np.lib.format.read_array_header_2_0
    )
    shape, fortran_order, dtype = read_header(start)
    if dtype.hasobject:
        raise ValueError("it holds Python objects, which are not read")
    if any(length < 0 for length in shape):
        raise ValueError(f"no array has the shape {shape}")
    left = num_bytes - start.tell()
    # An array without entries must not claim length along other axes either: others loop over it.
    lengths: list[int] = [max(length, 1) for length in shape]
    claimed = math.prod(lengths) * max(dtype.itemsize, 1)
    count = int(math.prod(shape))
    if claimed > left and (count or max(shape, default=0) > _CHUNK_BYTES):
        raise ValueError(
            f"it claims an array of the shape {list(shape)}, {claimed:,} bytes, and has {left:,}"
        )
    array = np.empty(count, dtype=dtype)
    first = start.read(array.nbytes)
    _fill(array, first, file)
    return array.reshape(shape[::-1]).T if fortran_order else array.reshape(shape), start.read()


def _fill(array: NDArray[Any], first: bytes, file: IO[bytes]) -> None:
    """Fill an array with bytes that were read already, and those that follow in the file."""
    import numpy as np

    if not array.nbytes:
        return
    target: NDArray[np.uint8] = array.view(np.uint8)
    target[: len(first)] = np.frombuffer(first, dtype=np.uint8)
    for begin in range(len(first), array.nbytes, _CHUNK_BYTES):
        wanted = min(_CHUNK_BYTES, array.nbytes - begin)
        piece = file.read(wanted)
        if len(piece) < wanted:
            raise ValueError("it ends too early")
        target[begin : begin + wanted] = np.frombuffer(piece, dtype=np.uint8)


def _remaining(file: IO[bytes]) -> int:
    here = file.tell()
    end = file.seek(0, io.SEEK_END)
    file.seek(here)
    return end - here


@contextlib.contextmanager
def _opened(file: Path | IO[bytes]) -> Iterator[IO[bytes]]:
    if isinstance(file, Path):
        with file.open("rb") as opened:
            yield opened
    else:
        yield file


@contextlib.contextmanager
def _one_error(label: object, kind: str) -> Iterator[None]:
    """Let everything that damage makes a reader stumble over be `Unreadable`."""
    try:
        yield
    except (FileNotFoundError, NotADirectoryError):
        raise
    # zipfile, zlib and NumPy's parser of headers raise a dozen kinds of errors, also tokenize's;
    # which one depends on where the damage lies, and on their versions.
    except Exception as error:
        raise Unreadable(f"{label} is damaged or no {kind} ({_said(error)})") from error


def _said(error: BaseException) -> str:
    if isinstance(error, MemoryError):
        return "there is not enough memory for it"
    text = " ".join(str(error).split())
    if isinstance(error, ValueError) and text:
        return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
