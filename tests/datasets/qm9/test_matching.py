import numpy as np
import pytest

from torchkiln.datasets.qm9._matching import MAX_BOND_ANGSTROM, match_heavy_atoms
from torchkiln.datasets.qm9._smiles import read_smiles


def chain(*distances):
    """Positions on a line, so far apart."""
    x = np.concatenate([[0.0], np.cumsum(distances)])
    return np.column_stack([x, np.zeros_like(x), np.zeros_like(x)])


def test_atoms_are_found_by_element_hydrogens_and_neighbours():
    # Ethanol, CCO, listed from the oxygen's end.
    places = match_heavy_atoms(read_smiles("CCO"), [8, 6, 6], [1, 2, 3], chain(1.43, 1.52))
    assert places == [2, 1, 0]


def test_hydrogens_tell_atoms_of_one_element_apart():
    # CC=C listed backwards: only the number of hydrogens tells the ends apart.
    places = match_heavy_atoms(read_smiles("CC=C"), [6, 6, 6], [2, 1, 3], chain(1.34, 1.5))
    assert places == [2, 1, 0]


def test_of_several_the_shortest_bonds_win():
    # Both outer atoms fit both ends of C=C-C=C as far as elements go; the middle bond decides.
    positions = chain(1.34, 1.46, 1.34)
    places = match_heavy_atoms(read_smiles("C=CC=C"), [6] * 4, [2, 1, 1, 2], positions)
    assert places in ([0, 1, 2, 3], [3, 2, 1, 0])


@pytest.mark.parametrize(
    ("numbers", "hydrogens", "length"),
    [
        ([6, 7], [3, 3], 1.5),
        ([6, 6], [3, 2], 1.5),
        ([6, 6], [3, 3], MAX_BOND_ANGSTROM + 0.1),
    ],
)
def test_what_does_not_fit_is_none(numbers, hydrogens, length):
    assert match_heavy_atoms(read_smiles("CC"), numbers, hydrogens, chain(length)) is None
