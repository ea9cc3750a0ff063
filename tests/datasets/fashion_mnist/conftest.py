import gzip
import struct

import numpy as np
import pytest

from torchkiln.datasets.fashion_mnist import _files

NUM_IMAGES = {"train": 40, "t10k": 20}


@pytest.fixture
def small_files(monkeypatch):
    """Files of some dozen images count as complete: the real ones take a second to write."""
    for name, (magic, sizes) in list(_files.FILES.items()):
        count = NUM_IMAGES[name.partition("-")[0]]
        monkeypatch.setitem(_files.FILES, name, (magic, (count, *sizes[1:])))


@pytest.fixture
def write_files(small_files):
    """Return a function that writes the four files into a folder, and returns their arrays."""

    def write(folder, *, packed=False):
        random = np.random.default_rng(5)
        folder.mkdir(parents=True, exist_ok=True)
        arrays = {}
        for name, (magic, sizes) in _files.FILES.items():
            array = random.integers(0, 256 if len(sizes) == 3 else 10, sizes, dtype=np.uint8)
            content = struct.pack(f">{1 + len(sizes)}I", magic, *sizes) + array.tobytes()
            if packed:
                (folder / f"{name}.gz").write_bytes(gzip.compress(content))
            else:
                (folder / name).write_bytes(content)
            arrays[name] = array
        return arrays

    return write
