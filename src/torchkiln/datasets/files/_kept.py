"""Molecules of large text files, kept in the data directory once they were read."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from torchkiln.core import parse_json
from torchkiln.datasets._array_cache import Arrays, cached_arrays
from torchkiln.datasets.molecules._molecules import Molecules

# Raised whenever files are read otherwise than before.
_FORMAT = 2
# Smaller files are read about as fast as what is kept of them.
_WORTH_BYTES = 20_000_000
_NAMES = ("offsets", "z", "pos", "targets", "texts")


def kept_molecules(files: Iterable[Path], read: Callable[[], Molecules]) -> Molecules:
    """Return what `read` makes of `files`; of large ones only the first time.

    Files are known again by path, size and time of change.
    """
    facts = [(str(path.resolve()), path.stat()) for path in files]
    if sum(stat.st_size for _, stat in facts) < _WORTH_BYTES:
        return read()
    seen = [(path, stat.st_size, stat.st_mtime_ns) for path, stat in facts]
    key = hashlib.sha256(repr((_FORMAT, seen)).encode()).hexdigest()[:16]
    # The name is one that `torchkiln data clear` knows.
    return _to_molecules(
        cached_arrays(f"qm9-files-{key}", lambda: _to_arrays(read()), names=_NAMES)
    )


def _to_arrays(molecules: Molecules) -> Arrays:
    return {
        "offsets": molecules.offsets,
        "z": molecules.z,
        "pos": molecules.pos,
        "targets": np.array(list(molecules.targets.values())).reshape(-1, len(molecules)),
        "texts": _to_bytes(
            [
                *(molecules.source, molecules.names, list(molecules.targets)),
                *(dict(molecules.units), molecules.unread),
            ]
        ),
    }


def _to_molecules(arrays: Arrays) -> Molecules:
    source, names, targets, units, unread = parse_json(
        arrays["texts"].tobytes(), "texts of kept molecules"
    )
    return Molecules(
        offsets=arrays["offsets"],
        z=arrays["z"],
        pos=arrays["pos"],
        names=names,
        targets=dict(zip(targets, arrays["targets"], strict=True)),
        source=source,
        units=units,
        unread=tuple(unread),
    )


def _to_bytes(texts: object) -> NDArray[np.uint8]:
    return np.frombuffer(json.dumps(texts).encode(), dtype=np.uint8)
