"""How many atoms of each element molecules have: what can be said from their formulas alone."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from torchkiln.datasets.molecules._molecules import Molecules

NUM_ELEMENTS = 119


def count_elements(molecules: Molecules, elements: list[int]) -> NDArray[np.float64]:
    """Return how many atoms of each element every molecule has, [num_molecules, num_elements].

    Args:
        molecules: Of no other elements.
        elements: Atomic numbers, one for each column.
    """
    column_of = np.zeros(NUM_ELEMENTS, dtype=np.int64)
    column_of[elements] = np.arange(len(elements))
    owner = np.repeat(np.arange(len(molecules)), molecules.num_atoms)
    cells = owner * len(elements) + column_of[molecules.z]
    flat = np.bincount(cells, minlength=len(molecules) * len(elements))
    return flat.reshape(-1, len(elements)).astype(np.float64)
