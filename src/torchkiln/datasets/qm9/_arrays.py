"""QM9 as flat arrays: what everything else here is made from."""

from __future__ import annotations

import dataclasses
import hashlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from torchkiln.core import StoreError
from torchkiln.core._progress import progress_bar
from torchkiln.datasets._array_cache import Arrays, cached_arrays, data_dir
from torchkiln.datasets.molecules._published_targets import (
    HARTREE_TO_EV,
    KCAL_MOL_TO_EV,
    published_targets,
)
from torchkiln.datasets.qm9._bonds import Bonds, derive_bonds
from torchkiln.datasets.qm9._source import PARTS, MoleculeTable, find_source, read_chunks

NUM_MOLECULES = 130_831
# Raised whenever the arrays or what is derived from them change.
_FORMAT = 1

_UNIT_OF_Y = np.array(
    [1, 1, *[HARTREE_TO_EV] * 3, 1, *[HARTREE_TO_EV] * 5, 1, *[KCAL_MOL_TO_EV] * 4, 1, 1, 1],
    dtype=np.float32,
)


@dataclass(frozen=True, slots=True)
class QM9Arrays:
    """All molecules, atoms and bonds one after the other.

    Attributes:
        index: Number of each molecule in QM9, counted from 1; 3,054 numbers are missing, the
            molecules that failed the consistency check of the authors.
        offsets: Where the atoms of each molecule begin and end, [num_molecules + 1].
        z: Atomic numbers, [num_atoms].
        pos: Coordinates in angstrom, [num_atoms, 3].
        charges: Formal charges, [num_atoms].
        bond_offsets: Where the bonds of each molecule begin and end, [num_molecules + 1].
        bond_ends: Both atoms of each bond, counted within the molecule, the smaller first.
        bond_orders: 1, 2 or 3, [num_bonds].
        targets: Properties in the published units (`TARGET_COLUMNS`), [num_molecules, 19]:
            hartree, kcal/mol for the atomisation energies; `y` has them in PyG's units.
    """

    index: NDArray[np.int64]
    offsets: NDArray[np.int64]
    z: NDArray[np.uint8]
    pos: NDArray[np.float64]
    charges: NDArray[np.int8]
    bond_offsets: NDArray[np.int64]
    bond_ends: NDArray[np.uint8]
    bond_orders: NDArray[np.uint8]
    targets: NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.index)

    @property
    def num_atoms(self) -> NDArray[np.int64]:
        """Atoms of each molecule."""
        return np.diff(self.offsets)

    @property
    def num_bonds(self) -> NDArray[np.int64]:
        """Bonds of each molecule; a graph has two edges for each."""
        return np.diff(self.bond_offsets)

    @property
    def y(self) -> NDArray[np.float32]:
        """Targets in the order and units of PyG (eV), rounded as PyG rounds them."""
        published = self.targets.astype(np.float32)
        return np.concatenate([published[:, 3:], published[:, :3]], axis=1) * _UNIT_OF_Y

    def first(self, count: int) -> QM9Arrays:
        """Return the first `count` molecules."""
        atoms, bonds = self.offsets[count], self.bond_offsets[count]
        return QM9Arrays(
            index=self.index[:count],
            offsets=self.offsets[: count + 1],
            z=self.z[:atoms],
            pos=self.pos[:atoms],
            charges=self.charges[:atoms],
            bond_offsets=self.bond_offsets[: count + 1],
            bond_ends=self.bond_ends[:bonds],
            bond_orders=self.bond_orders[:bonds],
            targets=self.targets[:count],
        )


def qm9_arrays(source: Path | None = None, *, progress: bool = True) -> QM9Arrays:
    """Return all of QM9, read from the tables of `qm9pack` once and from a cache afterwards.

    The first call takes about a quarter of a minute and leaves 90 MB in the data directory
    (`TORCHKILN_DATA_DIR`, default `~/.cache/torchkiln`).

    Args:
        source: Folder with the tables; default: that of the installed package.
        progress: Whether to show a progress bar while tables are read.

    Raises:
        StoreError: if the tables are missing or damaged.
    """
    folder = find_source(source)

    def build() -> Arrays:
        whole = build_arrays(folder, progress=progress)
        return {field.name: getattr(whole, field.name) for field in dataclasses.fields(whole)}

    names = [field.name for field in dataclasses.fields(QM9Arrays)]
    return QM9Arrays(**cached_arrays(_kept_name(folder), build, names=names))


def kept_path(folder: Path) -> Path:
    """Return the file that `qm9_arrays` keeps for the tables in `folder`, there or not."""
    return data_dir() / f"{_kept_name(folder)}.npz"


def _kept_name(folder: Path) -> str:
    return f"qm9-{source_key(folder)}"


def source_key(folder: Path) -> str:
    """Return a short text that changes with the tables in `folder` or with what is made of them."""
    stats = [(folder / name).stat() for name in PARTS]
    facts = repr((_FORMAT, [(stat.st_size, stat.st_mtime_ns) for stat in stats]))
    return hashlib.sha256(facts.encode()).hexdigest()[:16]


def build_arrays(folder: Path, *, progress: bool = False) -> QM9Arrays:
    """Read the tables in `folder` and derive bonds and atomisation energies."""
    tables: list[MoleculeTable] = []
    bonds: list[Bonds] = []
    with progress_bar(
        total=NUM_MOLECULES, desc="Reading QM9", unit="molecule", show=progress
    ) as bar:
        for table in read_chunks(folder):
            tables.append(table)
            bonds.append(_bonds_of(table, folder))
            bar.update(len(table.index))
    index = np.concatenate([table.index for table in tables])
    if (np.diff(index) <= 0).any():
        raise StoreError(f"molecules in {folder} are not in the order of their numbers")
    return QM9Arrays(
        index=index,
        offsets=_joined_offsets([table.offsets for table in tables]),
        z=np.concatenate([table.z for table in tables]),
        pos=np.concatenate([table.pos for table in tables]),
        charges=np.concatenate([bond.charges for bond in bonds]),
        bond_offsets=_joined_offsets([bond.offsets for bond in bonds]),
        bond_ends=np.concatenate([bond.ends for bond in bonds]),
        bond_orders=np.concatenate([bond.orders for bond in bonds]),
        targets=np.concatenate(
            [published_targets(table.properties, table.z, table.offsets) for table in tables]
        ),
    )


def _bonds_of(table: MoleculeTable, folder: Path) -> Bonds:
    try:
        return derive_bonds(table)
    # Molecules that QM9 does not have, such as one of hydrogen alone, end in any kind of error.
    except (StoreError, IndexError, ValueError, KeyError) as error:
        raise StoreError(
            f"{folder}, molecules gdb_{table.index[0]} to gdb_{table.index[-1]}: {error}; install "
            "qm9pack anew"
        ) from error


def _joined_offsets(parts: list[NDArray[np.int64]]) -> NDArray[np.int64]:
    counts = np.concatenate([np.diff(part) for part in parts])
    return np.concatenate([[0], np.cumsum(counts)])
