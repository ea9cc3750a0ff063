"""Sizes of the graphs of a dataset, which is all that packing needs to know."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from torchkiln.core import OptionsError
from torchkiln.datasets._array_cache import Arrays, cached_arrays
from torchkiln.datasets.qm9._arrays import QM9Arrays, qm9_arrays, source_key
from torchkiln.datasets.qm9._source import find_source

_PAIRS_PER_STEP = 4_000_000


def load_sizes(
    name: str, *, cutoff_angstrom: float | None = None, source: Path | None = None
) -> dict[str, NDArray[np.int64]]:
    """Return the number of "nodes" and "edges" of every graph of a dataset.

    The sizes are kept in the data directory (`TORCHKILN_DATA_DIR`); no graph is built for them.

    Args:
        name: The dataset; "qm9" is known.
        cutoff_angstrom: Count edges between all atoms at most this far apart, in both directions,
            instead of those of bonds.
        source: Folder with the dataset's files; default: where its package is installed.

    Raises:
        OptionsError: if the dataset is unknown or the cutoff is not a positive length.
        StoreError: if its files are missing or damaged.
    """
    if name != "qm9":
        raise OptionsError(f"unknown dataset {name!r}; choose from: qm9")
    if cutoff_angstrom is not None and not 0 < cutoff_angstrom < np.inf:
        raise OptionsError(f"cutoff_angstrom must be a positive length, got {cutoff_angstrom}")
    folder = find_source(source)
    edges = "bonds" if cutoff_angstrom is None else f"cutoff-{float(cutoff_angstrom)!r}"

    def build() -> Arrays:
        arrays = qm9_arrays(folder)
        bonds = 2 * arrays.num_bonds
        near = None if cutoff_angstrom is None else count_neighbors(arrays, cutoff_angstrom)
        return {"nodes": arrays.num_atoms, "edges": bonds if near is None else near}

    return cached_arrays(f"qm9-{source_key(folder)}-sizes-{edges}", build, names=("nodes", "edges"))


def count_neighbors(arrays: QM9Arrays, cutoff_angstrom: float) -> NDArray[np.int64]:
    """Return for each molecule how many ordered pairs of its atoms lie within the cutoff."""
    counts = np.zeros(len(arrays), dtype=np.int64)
    for size in np.unique(arrays.num_atoms).tolist():
        # Molecules of one size form one array; they are taken in steps that fit into memory.
        members = np.flatnonzero(arrays.num_atoms == size)
        for some in np.array_split(members, 1 + len(members) * size**2 // _PAIRS_PER_STEP):
            pos = arrays.pos[arrays.offsets[some][:, None] + np.arange(size)]
            squares = sum((pos[:, :, None, axis] - pos[:, None, :, axis]) ** 2 for axis in range(3))
            near = np.asarray(squares) <= cutoff_angstrom**2
            counts[some] = near.sum(axis=(1, 2)) - size  # an atom is no neighbour of itself
    return counts
