"""Telling whether a minimum was found before."""

from __future__ import annotations

from bisect import bisect_left, insort

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

# Relaxed twice from different sides, a minimum differs by 1e-5 kcal/mol and 0.003 angstrom.
ENERGY_TOLERANCE = 1e-3
DISTANCE_TOLERANCE = 0.02


class DistinctMinima:
    """Remembers minima of one size; mirror images and renamed atoms count as the same.

    Two minima are the same if their energies agree and so do the sorted distances between their
    atoms, in the root mean square: oxygens with oxygens, oxygens with hydrogens, hydrogens with
    hydrogens.
    """

    def __init__(self) -> None:
        self._by_energy: list[tuple[float, int]] = []
        self._fingerprints: list[Floats] = []

    def __len__(self) -> int:
        return len(self._fingerprints)

    def add(self, pos: Floats, energy: float) -> bool:
        """Remember the minimum `pos` [num_molecules, 3, 3]; return whether it is new."""
        new = fingerprint(pos)
        start = bisect_left(self._by_energy, (energy - ENERGY_TOLERANCE, -1))
        for known_energy, index in self._by_energy[start:]:
            if known_energy > energy + ENERGY_TOLERANCE:
                break
            difference = self._fingerprints[index] - new
            if np.sqrt(np.mean(difference**2)) < DISTANCE_TOLERANCE:
                return False
        insort(self._by_energy, (energy, len(self._fingerprints)))
        self._fingerprints.append(new)
        return True


def fingerprint(pos: Floats) -> Floats:
    """Return the sorted distances between oxygens, between O and H, and between hydrogens."""
    oxygens, hydrogens = pos[:, 0], pos[:, 1:].reshape(-1, 3)
    pieces = []
    for first, second in ((oxygens, oxygens), (oxygens, hydrogens), (hydrogens, hydrogens)):
        apart = np.linalg.norm(first[:, None] - second[None], axis=-1)
        if first is second:
            apart = apart[np.triu_indices(len(first), 1)]
        pieces.append(np.sort(apart, axis=None))
    return np.concatenate(pieces)
