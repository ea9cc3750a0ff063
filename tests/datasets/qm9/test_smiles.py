import pytest

from torchkiln.core import StoreError
from torchkiln.datasets.qm9._smiles import read_smiles


@pytest.mark.parametrize(
    ("smiles", "numbers", "hydrogens", "bonds"),
    [
        ("C", (6,), (4,), ()),
        ("C#N", (6, 7), (1, 0), ((0, 1, 3),)),
        ("CC(=O)F", (6, 6, 8, 9), (3, 0, 0, 0), ((0, 1, 1), (1, 2, 2), (1, 3, 1))),
        ("C1CO1", (6, 6, 8), (2, 2, 0), ((0, 1, 1), (0, 2, 1), (1, 2, 1))),
        ("CC(C(N)O)O", (6, 6, 6, 7, 8, 8), (3, 1, 1, 2, 1, 1), None),
        # A nitro group as QM9 writes it: nitrogen with five bonds and no hydrogen.
        ("CN(=O)=O", (6, 7, 8, 8), (3, 0, 0, 0), ((0, 1, 1), (1, 2, 2), (1, 3, 2))),
    ],
)
def test_atoms_hydrogens_and_bonds(smiles, numbers, hydrogens, bonds):
    atoms = read_smiles(smiles)
    assert atoms.numbers == numbers
    assert atoms.hydrogens == hydrogens
    assert bonds is None or atoms.bonds == bonds


def test_charged_atoms_state_their_hydrogens():
    atoms = read_smiles("[NH3+]CC([O-])=O")
    assert atoms.charges == (1, 0, 0, -1, 0)
    assert atoms.hydrogens == (3, 2, 0, 0, 0)
    assert read_smiles("[CH-]1C[NH+]1C").hydrogens == (1, 2, 1, 3)
    assert read_smiles("[C+2]").charges == (2,)


def test_branches_return_to_where_they_left():
    assert read_smiles("C(C(C)C)(O)N").bonds == (
        (0, 1, 1),
        (0, 4, 1),
        (0, 5, 1),
        (1, 2, 1),
        (1, 3, 1),
    )


def test_a_ring_number_is_free_again_once_closed():
    assert read_smiles("C1CC1C1CC1").bonds == read_smiles("C1CC1C2CC2").bonds


@pytest.mark.parametrize("smiles", ["C=1CC1", "C1CC=1", "C=1CC=1", "C=%12CC%12"])
def test_the_order_of_a_ring_bond_may_stand_at_either_end(smiles):
    assert (0, 2, 2) in read_smiles(smiles).bonds


@pytest.mark.parametrize("smiles", ["", "C1CC", "C(C", "CC="])
def test_an_open_end_is_refused(smiles):
    with pytest.raises(StoreError, match="incomplete"):
        read_smiles(smiles)


@pytest.mark.parametrize("smiles", ["c1ccccc1", "CS", "[13CH4]", "C/C=C/C", "1C", "C)C", "[Na+]"])
def test_what_qm9_does_not_have_is_refused_not_guessed(smiles):
    with pytest.raises(StoreError, match="cannot read"):
        read_smiles(smiles)


def test_too_many_bonds_are_refused():
    with pytest.raises(StoreError, match=r"atom 1 \(O\) of SMILES 'C=O=C' has 4 bonds"):
        read_smiles("C=O=C")
