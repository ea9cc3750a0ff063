"""Files as they should not be."""

from __future__ import annotations

import io
import struct
import zipfile
from collections.abc import Iterator

import numpy as np


def claiming(shape: str, dtype: str = "<f8") -> bytes:
    """Return a .npy file whose header promises an array of this shape, and that has none."""
    text = f"{{'descr': {dtype!r}, 'fortran_order': False, 'shape': {shape}, }}".encode()
    text += b" " * (-(len(text) + 11) % 64) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text


def npz_claiming(*names: str, shape: str = "(1000000000000,)") -> bytes:
    """Return a .npz file whose arrays promise a terabyte and more."""
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        for name in names:
            archive.writestr(f"{name}.npy", claiming(shape))
    return content.getvalue()


def deep_json(depth: int = 50_000) -> str:
    return '{"train":' + "[" * depth + "]" * depth + "}"


def damaged(whole: bytes, *, count: int = 150, seed: int = 0) -> Iterator[bytes]:
    """Yield the content cut, with bytes changed, with a part missing, and with noise in it."""
    random = np.random.default_rng(seed)
    for _ in range(count):
        place = int(random.integers(len(whole)))
        size = int(random.integers(1, 20))
        noise = random.integers(0, 256, size, np.uint8).tobytes()
        yield whole[:place]
        yield whole[:place] + noise + whole[place + size :]
        yield whole[:place] + whole[place + size :]
        yield whole[:place] + noise + whole[place:]
