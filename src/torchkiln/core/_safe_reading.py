"""Reading JSON and NumPy files that may be damaged, or may claim to be larger than they are.

Whatever is wrong with them is one error, `Unreadable`, which the caller turns into one with a
remedy. What a file claims to hold is compared with its size before memory is taken. Nothing is
unpickled.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from torchkiln.core._errors import StoreError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

# Deflate writes at least one bit for 129 bytes; zip adds nothing to what it compresses.
_MOST_PER_BYTE = 1032
_CHUNK_BYTES = 2**24


class Unreadable(StoreError):  # noqa: N818 - a finding for the caller, who knows the remedy
    """A file does not hold what it should; the message says why, not what to do about it."""


def read_json(path: Path) -> Any:
    """Return the content of a JSON file.

    Raises:
        Unreadable: It is no JSON, or nested too deeply.
        FileNotFoundError: There is none.
    """
    with _one_error(), path.open("rb") as file:
        return parse_json(file.read())


def parse_json(text: str | bytes) -> Any:
    """Return what a JSON text says; see `read_json`."""
    with _one_error():
        return json.loads(text)


def read_npy(source: Path | IO[bytes]) -> NDArray[Any]:
    """Return the array of a .npy file.

    Raises:
        Unreadable: It is damaged, or holds less than it claims.
        FileNotFoundError: There is none.
    """
    with _one_error(), _opened(source) as file:
        return _read_array(file, _remaining(file))


def read_npz(source: Path | IO[bytes]) -> dict[str, NDArray[Any]]:
    """Return the arrays of a .npz file by name; their checksums are verified.

    Raises:
        Unreadable: It is damaged, or claims more than a file of its size can hold.
        FileNotFoundError: There is none.
    """
    with _one_error(), _opened(source) as file:
        size = _remaining(file)
        with zipfile.ZipFile(file) as archive:
            members = archive.infolist()
            if len(members) != _num_members(file, archive):
                raise Unreadable("its table of contents is damaged")
            if sum(member.compress_size for member in members) > size:
                raise Unreadable(f"its parts take more than its {size} bytes")
            return {_array_name(member): _read_member(archive, member) for member in members}


def _num_members(file: IO[bytes], archive: zipfile.ZipFile) -> int:
    """Return how many parts there should be; a flipped bit may make one hide the next."""
    file.seek(-(22 + len(archive.comment)), os.SEEK_END)
    return int.from_bytes(file.read(12)[10:], "little")


def _array_name(member: zipfile.ZipInfo) -> str:
    name = member.filename.removesuffix(".npy")
    if name == member.filename:
        raise Unreadable(f"{name!r} in it is no array")
    return name


def _read_member(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> NDArray[Any]:
    if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise Unreadable(f"{member.filename!r} in it is compressed in an unknown way")
    if member.file_size > _MOST_PER_BYTE * member.compress_size:
        raise Unreadable(
            f"{member.filename!r} claims {member.file_size} bytes and takes {member.compress_size}"
        )
    with archive.open(member) as stream:
        array = _read_array(stream, member.file_size)
        if stream.read(1):  # to the end, where the checksum is compared
            raise Unreadable(f"{member.filename!r} holds more than its array")
        return array


def _read_array(file: IO[bytes], num_bytes: int) -> NDArray[Any]:
    """Read an array from a file that has `num_bytes` left."""
    import numpy as np

    begin = file.tell()
    major, _ = np.lib.format.read_magic(file)
    read_header = {
        1: np.lib.format.read_array_header_1_0,
        2: np.lib.format.read_array_header_2_0,
    }[major]
    shape, fortran_order, dtype = read_header(file)
    if dtype.hasobject or any(length < 0 for length in shape):
        raise Unreadable(f"an array of {dtype} {list(shape)} is none of numbers or texts")
    count = math.prod(shape)
    left = num_bytes - (file.tell() - begin)
    if count * max(dtype.itemsize, 1) > left:
        raise Unreadable(
            f"an array of {dtype} {list(shape)} takes {count * dtype.itemsize} bytes, and {left} "
            "are there"
        )
    array = np.empty(count, dtype=dtype)
    _fill(array, file)
    return array.reshape(shape[::-1]).T if fortran_order else array.reshape(shape)


def _fill(array: NDArray[Any], file: IO[bytes]) -> None:
    import numpy as np

    target: NDArray[np.uint8] = array.view(np.uint8) if array.itemsize and array.size else array
    for begin in range(0, array.nbytes, _CHUNK_BYTES):
        piece = file.read(min(_CHUNK_BYTES, array.nbytes - begin))
        target[begin : begin + len(piece)] = np.frombuffer(piece, dtype=np.uint8)
        if len(piece) < min(_CHUNK_BYTES, array.nbytes - begin):
            raise Unreadable("it ends too early")


def _remaining(file: IO[bytes]) -> int:
    here = file.tell()
    end = file.seek(0, os.SEEK_END)
    file.seek(here)
    return end - here


@contextlib.contextmanager
def _opened(source: Path | IO[bytes]) -> Iterator[IO[bytes]]:
    if isinstance(source, Path):
        with source.open("rb") as file:
            yield file
    else:
        yield source


@contextlib.contextmanager
def _one_error() -> Iterator[None]:
    """Let everything that damage makes a reader stumble over be `Unreadable`."""
    try:
        yield
    except (Unreadable, FileNotFoundError):
        raise
    except Exception as error:
        # zlib.error, BadZipFile, struct.error, SyntaxError, tokenize's, RecursionError, ...: which
        # of them it is depends on where the damage lies, and on the versions of the readers.
        raise Unreadable(f"{type(error).__name__}: {error}") from error
