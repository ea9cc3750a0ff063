"""Telling which atom of a geometry is which atom of a SMILES."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from torchkiln.datasets.qm9._smiles import HeavyAtoms

# Angstrom. Bonds between heavy atoms of QM9 end at 1.79 (strained rings), the next neighbours of
# an atom begin a little later.
MAX_BOND_ANGSTROM = 1.9


def match_heavy_atoms(
    atoms: HeavyAtoms,
    numbers: Sequence[int],
    hydrogens: Sequence[int],
    positions: NDArray[np.float64],
) -> list[int] | None:
    """Return for each atom of a SMILES the heavy atom of the geometry that it is.

    An assignment fits if elements and numbers of hydrogens agree and every bond is short enough.
    Symmetric molecules have several; the one with the least total bond length is taken.

    Args:
        atoms: The atoms to place.
        numbers: Atomic numbers of the heavy atoms of the geometry.
        hydrogens: How many hydrogens lie nearest to each of them.
        positions: Their coordinates, [num_heavy, 3].

    Returns:
        The assignment, or None where no assignment fits.
    """
    lengths = np.linalg.norm(positions[:, None] - positions[None], axis=-1)
    best: tuple[float, list[int]] | None = None
    for places in _assignments(atoms, numbers, hydrogens, lengths):
        total = sum(float(lengths[places[a], places[b]]) for a, b, _ in atoms.bonds)
        # A tie between mirror images is kept as found, whatever the last bits of the sums say.
        if best is None or total < best[0] - 1e-6:
            best = total, places
    return None if best is None else best[1]


def _assignments(
    atoms: HeavyAtoms,
    numbers: Sequence[int],
    hydrogens: Sequence[int],
    lengths: NDArray[np.float64],
) -> Iterator[list[int]]:
    """Yield all assignments that fit, in lexicographic order."""
    count = len(atoms.numbers)
    earlier: list[list[int]] = [[] for _ in range(count)]
    for first, second, _ in atoms.bonds:
        earlier[second].append(first)

    def extend(places: list[int]) -> Iterator[list[int]]:
        atom = len(places)
        if atom == count:
            yield list(places)
            return
        for place in range(count):
            if (
                place not in places
                and numbers[place] == atoms.numbers[atom]
                and hydrogens[place] == atoms.hydrogens[atom]
                and all(
                    lengths[places[other], place] < MAX_BOND_ANGSTROM for other in earlier[atom]
                )
            ):
                yield from extend([*places, place])

    if len(numbers) == count:
        yield from extend([])
