"""Bonds of QM9's molecules, from their SMILES (bond orders) and their geometry (who is where)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from torchkiln.core import StoreError
from torchkiln.datasets.qm9._matching import MAX_BOND_ANGSTROM, match_heavy_atoms
from torchkiln.datasets.qm9._smiles import HeavyAtoms, read_smiles
from torchkiln.datasets.qm9._source import MoleculeTable


@dataclass(frozen=True, slots=True)
class Bonds:
    """Bonds of molecules in a row; ends are atoms counted within their molecule.

    Attributes:
        offsets: Where each molecule's bonds begin and end, [num_molecules + 1].
        ends: Both atoms of each bond, the smaller first, sorted; [num_bonds, 2].
        orders: 1, 2 or 3 for single, double and triple bonds, [num_bonds].
        charges: Formal charge of each atom of the table, [num_atoms].
    """

    offsets: NDArray[np.int64]
    ends: NDArray[np.uint8]
    orders: NDArray[np.uint8]
    charges: NDArray[np.int8]


def derive_bonds(table: MoleculeTable) -> Bonds:
    """Return the bonds of all molecules of `table`.

    Hydrogens belong to the nearest heavy atom. Heavy atoms stand in the order of the SMILES, but
    for a handful of molecules, which are matched; and two molecules of QM9 relaxed to another
    skeleton than their SMILES says: there the geometry decides.

    Raises:
        StoreError: if a SMILES does not fit its geometry.
    """
    heavy = np.flatnonzero(table.z > 1)
    molecule_of = np.repeat(np.arange(len(table.smiles)), np.diff(table.offsets))
    heavy_offsets = np.searchsorted(heavy, table.offsets)
    hydrogens, owners = _nearest_heavy(table, heavy, heavy_offsets, molecule_of)
    carried = np.bincount(owners, minlength=len(heavy))

    molecules = [read_smiles(smiles) for smiles in table.smiles]
    for i in _out_of_order(molecules, table, heavy, heavy_offsets, carried):
        here = slice(heavy_offsets[i], heavy_offsets[i + 1])
        molecules[i] = _reordered(
            molecules[i],
            table.z[heavy[here]],
            carried[here],
            table.pos[heavy[here]],
            table.index[i],
        )
    charges = np.zeros(len(table.z), dtype=np.int8)
    charges[heavy] = np.concatenate([atoms.charges for atoms in molecules])
    skeletons = _flat_bonds(molecules, heavy_offsets)
    skeletons[:, :2] = heavy[skeletons[:, :2]]
    to_hydrogens = np.column_stack([heavy[owners], hydrogens, np.ones_like(hydrogens)])
    return _sorted_bonds(np.concatenate([skeletons, to_hydrogens]), table, molecule_of, charges)


def _flat_bonds(molecules: list[HeavyAtoms], heavy_offsets: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the bonds of all molecules, ends counted over all heavy atoms."""
    flat = np.array([bond for atoms in molecules for bond in atoms.bonds], dtype=np.int64)
    flat = flat.reshape(-1, 3)  # methane, water and ammonia have none
    shift = np.repeat(heavy_offsets[:-1], [len(atoms.bonds) for atoms in molecules])
    flat[:, :2] += shift[:, None]
    return flat


def _out_of_order(
    molecules: list[HeavyAtoms],
    table: MoleculeTable,
    heavy: NDArray[np.int64],
    heavy_offsets: NDArray[np.int64],
    carried: NDArray[np.int64],
) -> list[int]:
    """Return the molecules whose atoms, taken in order, do not fit their SMILES."""
    counts = np.array([len(atoms.numbers) for atoms in molecules])
    if wrong := np.flatnonzero(counts != np.diff(heavy_offsets)).tolist():
        raise _misfit(table.index[wrong[0]])
    numbers = np.concatenate([atoms.numbers for atoms in molecules])
    hydrogens = np.concatenate([atoms.hydrogens for atoms in molecules])
    odd_atoms = np.flatnonzero((numbers != table.z[heavy]) | (hydrogens != carried))
    bonds = _flat_bonds(molecules, heavy_offsets)
    odd_bonds = bonds[_lengths(table.pos[heavy], bonds) > MAX_BOND_ANGSTROM, 0]
    odd = np.concatenate([odd_atoms, odd_bonds])
    unfit: list[int] = np.unique(np.searchsorted(heavy_offsets, odd, side="right") - 1).tolist()
    return unfit


def _nearest_heavy(
    table: MoleculeTable,
    heavy: NDArray[np.int64],
    heavy_offsets: NDArray[np.int64],
    molecule_of: NDArray[np.int64],
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return all hydrogens, and the position in `heavy` of the heavy atom nearest to each."""
    hydrogens = np.flatnonzero(table.z == 1)
    first = heavy_offsets[molecule_of[hydrogens]]
    choices = heavy_offsets[molecule_of[hydrogens] + 1] - first
    starts = np.cumsum(choices) - choices
    # One row per pair of a hydrogen and a heavy atom of the same molecule.
    candidates = np.arange(choices.sum()) + np.repeat(first - starts, choices)
    apart = table.pos[np.repeat(hydrogens, choices)] - table.pos[heavy[candidates]]
    squares = np.einsum("ij,ij->i", apart, apart)
    nearest = squares == np.repeat(np.minimum.reduceat(squares, starts), choices)
    chosen = np.flatnonzero(nearest)
    # An exact tie keeps the first candidate.
    _, once = np.unique(np.repeat(hydrogens, choices)[chosen], return_index=True)
    return hydrogens, candidates[chosen[once]]


def _reordered(
    atoms: HeavyAtoms,
    numbers: NDArray[np.uint8],
    carried: NDArray[np.int64],
    pos: NDArray[np.float64],
    index: int,
) -> HeavyAtoms:
    """Return `atoms` in the order of the geometry, with the bonds that it has."""
    places = match_heavy_atoms(atoms, numbers.tolist(), carried.tolist(), pos)
    if places is not None:
        charges = dict(zip(places, atoms.charges, strict=True))
        bonds = [(places[a], places[b], order) for a, b, order in atoms.bonds]
    else:
        charges = dict(enumerate(atoms.charges))
        bonds = _bonds_of_geometry(atoms, pos)
        same_atoms = atoms.numbers == tuple(numbers) and atoms.hydrogens == tuple(carried)
        if not same_atoms or _valences(bonds) != _valences(atoms.bonds):
            raise _misfit(index)
    return HeavyAtoms(
        numbers=tuple(numbers.tolist()),
        charges=tuple(charges[i] for i in range(len(numbers))),
        hydrogens=tuple(carried.tolist()),
        bonds=tuple(bonds),
    )


def _misfit(index: int) -> StoreError:
    return StoreError(f"gdb_{index}: the geometry does not fit its SMILES")


def _lengths(pos: NDArray[np.float64], bonds: NDArray[np.int64]) -> NDArray[np.float64]:
    lengths: NDArray[np.float64] = np.linalg.norm(pos[bonds[:, 0]] - pos[bonds[:, 1]], axis=-1)
    return lengths


def _bonds_of_geometry(atoms: HeavyAtoms, pos: NDArray[np.float64]) -> list[tuple[int, int, int]]:
    """Return the bonds between near atoms: single, but where the SMILES knows better."""
    pairs = np.column_stack(np.triu_indices(len(pos), k=1))
    near = pairs[_lengths(pos, pairs) < MAX_BOND_ANGSTROM].tolist()
    known = {(a, b): order for a, b, order in atoms.bonds}
    return [(a, b, known.get((a, b), 1)) for a, b in near]


def _valences(bonds: Iterable[tuple[int, int, int]]) -> Counter[int]:
    valences: Counter[int] = Counter()
    for first, second, order in bonds:
        valences[first] += order
        valences[second] += order
    return valences


def _sorted_bonds(
    bonds: NDArray[np.int64],
    table: MoleculeTable,
    molecule_of: NDArray[np.int64],
    charges: NDArray[np.int8],
) -> Bonds:
    """Sort bonds of atoms counted over all molecules by molecule and ends."""
    low, high = np.minimum(bonds[:, 0], bonds[:, 1]), np.maximum(bonds[:, 0], bonds[:, 1])
    order = np.lexsort((high, low))
    low, high = low[order], high[order]
    molecule = molecule_of[low]
    start = table.offsets[molecule]
    return Bonds(
        offsets=np.searchsorted(molecule, np.arange(len(table.smiles) + 1)),
        ends=np.column_stack([low - start, high - start]).astype(np.uint8),
        orders=bonds[order, 2].astype(np.uint8),
        charges=charges,
    )
