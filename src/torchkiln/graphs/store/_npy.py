"""Arrays as .npy files whose first bytes have a fixed length, so that they can be written last."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torchkiln.core import StoreError
from torchkiln.graphs.store._blocks import REMEDY, Bytes
from torchkiln.graphs.store._columns import Array, read_only

# Reserved before the shape is known; a multiple of 64, so that the numbers after it are aligned.
PREAMBLE_BYTES = 192


def preamble(dtype: np.dtype[Any], shape: tuple[int, ...]) -> bytes:
    """Return the first bytes of a .npy file."""
    fields = {"descr": dtype.str, "fortran_order": False, "shape": tuple(map(int, shape))}
    magic = np.lib.format.magic(1, 0)
    length = PREAMBLE_BYTES - len(magic) - 2
    text = repr(fields).encode("latin1").ljust(length - 1) + b"\n"
    assert len(text) == length, f"shape {shape} is too long for the preamble of a .npy file"
    return magic + length.to_bytes(2, "little") + text


def write_npy(path: Path, array: NDArray[Any]) -> None:
    with path.open("wb") as file:
        file.write(preamble(array.dtype, array.shape))
        # Not `tofile`: it does not notice when the last of its bytes find no room on the disk.
        file.write(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)


def map_file(path: Path) -> Bytes:
    """Return the content of a file, which the system reads when it is used."""
    # A plain array over the mapping: Numba does not know NumPy's own class for it.
    return np.asarray(np.memmap(path, dtype=np.uint8, mode="r"))


def numbers_of(path: Path, content: Bytes, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Array:
    """Return the array of a .npy file, which must be as said.

    Raises:
        StoreError: It is another one.
    """
    num_bytes = math.prod(shape) * dtype.itemsize
    if len(content) != PREAMBLE_BYTES + num_bytes or content[:PREAMBLE_BYTES].tobytes() != (
        preamble(dtype, shape)
    ):
        raise StoreError(
            f"{path} is damaged: it contradicts the header of the store, which says {dtype} "
            f"{list(shape)}; {REMEDY}"
        )
    return read_only(content[PREAMBLE_BYTES:].view(dtype).reshape(shape))
