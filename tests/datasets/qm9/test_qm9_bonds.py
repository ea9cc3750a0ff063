import dataclasses

import numpy as np
import pytest
from _odd_molecules import OUT_OF_ORDER, REARRANGED, ZWITTERION

from torchkiln.core import StoreError
from torchkiln.datasets.qm9._bonds import derive_bonds
from torchkiln.datasets.qm9._smiles import read_smiles
from torchkiln.datasets.qm9._source import MoleculeTable, read_chunks

# Angstrom: the longest bond to a hydrogen in QM9 has 1.25, the shortest distance to another 1.5.
MAX_HYDROGEN_BOND = 1.3
MAX_HEAVY_BOND = 1.9


def one_molecule(smiles, z, pos):
    return MoleculeTable(
        index=np.array([7]),
        smiles=[smiles],
        offsets=np.array([0, len(z)]),
        z=np.array(z, dtype=np.uint8),
        pos=np.array(pos, dtype=float),
        properties=np.zeros((1, 15)),
    )


def bonds_of(arrays, index):
    """Return the bonds, atoms and coordinates of the molecule of that number."""
    i = arrays.index.tolist().index(index)
    bonds = slice(arrays.bond_offsets[i], arrays.bond_offsets[i + 1])
    atoms = slice(arrays.offsets[i], arrays.offsets[i + 1])
    ends = arrays.bond_ends[bonds].astype(int)
    return ends, arrays.bond_orders[bonds], arrays.z[atoms], arrays.pos[atoms]


def test_hydrogens_belong_to_the_nearest_heavy_atom_wherever_they_stand():
    # Formaldehyde with a hydrogen listed between the heavy atoms.
    table = one_molecule("C=O", [1, 6, 1, 8], [[-1, 0.5, 0], [0, 0, 0], [-1, -0.5, 0], [1.2, 0, 0]])
    bonds = derive_bonds(table)
    assert bonds.ends.tolist() == [[0, 1], [1, 2], [1, 3]]
    assert bonds.orders.tolist() == [1, 1, 2]


def test_every_bond_is_as_long_as_a_bond(molecules):
    molecule = np.repeat(np.arange(len(molecules)), molecules.num_bonds)
    first, second = (molecules.bond_ends[:, i] + molecules.offsets[molecule] for i in (0, 1))
    lengths = np.linalg.norm(molecules.pos[first] - molecules.pos[second], axis=1)
    hydrogen = (molecules.z[first] == 1) | (molecules.z[second] == 1)
    assert lengths[hydrogen].max() < MAX_HYDROGEN_BOND
    assert lengths[~hydrogen].max() < MAX_HEAVY_BOND


def test_valences_are_those_of_the_smiles(qm9_tables):
    for table in read_chunks(qm9_tables):
        bonds = derive_bonds(table)
        for i, smiles in enumerate(table.smiles):
            atoms = read_smiles(smiles)
            here = slice(bonds.offsets[i], bonds.offsets[i + 1])
            orders = sorted(bonds.orders[here].tolist())
            hydrogens = [1] * sum(atoms.hydrogens)
            assert orders == sorted([order for *_, order in atoms.bonds] + hydrogens)


@pytest.mark.parametrize("index", OUT_OF_ORDER)
def test_molecules_in_another_order_are_matched(molecules, index):
    ends, _, z, pos = bonds_of(molecules, index)
    lengths = np.linalg.norm(pos[ends[:, 0]] - pos[ends[:, 1]], axis=1)
    heavy = (z[ends] > 1).all(axis=1)
    assert lengths[heavy].max() < MAX_HEAVY_BOND


@pytest.mark.parametrize("index", REARRANGED)
def test_where_the_skeleton_changed_the_geometry_decides(molecules, index):
    ends, orders, z, _ = bonds_of(molecules, index)
    pairs = {tuple(pair) for pair in ends.tolist()}
    # The SMILES says 2-3 and 7-8, which lie 2.2 angstrom apart; 2-7 and 3-8 are bonds instead.
    assert {(2, 7), (3, 8)} <= pairs
    assert not {(2, 3), (7, 8)} & pairs
    valences = np.bincount(ends.ravel(), weights=np.repeat(orders, 2))
    assert (valences[z == 6] == 4).all()


def test_charges_stand_at_their_atoms(molecules):
    i = molecules.index.tolist().index(ZWITTERION)
    atoms = slice(molecules.offsets[i], molecules.offsets[i + 1])
    charged = {z: q for z, q in zip(molecules.z[atoms], molecules.charges[atoms], strict=True) if q}
    assert charged == {7: 1, 6: -1}


@pytest.mark.parametrize(
    ("smiles", "z", "x"),
    [
        ("CC", [6], [0.0]),
        ("C=O", [6, 7, 1, 1], [0.0, 1.2, -1.0, -1.1]),
        ("C=O", [6, 8, 1], [0.0, 1.2, -1.0]),
        ("FF", [9, 9], [0.0, 5.0]),
    ],
)
def test_a_geometry_that_does_not_fit_is_refused_by_name(smiles, z, x):
    table = one_molecule(smiles, z, [[value, 0, 0] for value in x])
    with pytest.raises(StoreError, match="gdb_7: the geometry does not fit"):
        derive_bonds(table)


def test_bonds_do_not_depend_on_the_other_molecules_of_a_chunk(qm9_tables):
    table = next(read_chunks(qm9_tables))
    whole = derive_bonds(table)
    i = 100
    atoms = slice(table.offsets[i], table.offsets[i + 1])
    alone = derive_bonds(
        dataclasses.replace(
            table,
            index=table.index[[i]],
            smiles=[table.smiles[i]],
            offsets=table.offsets[i : i + 2] - table.offsets[i],
            z=table.z[atoms],
            pos=table.pos[atoms],
            properties=table.properties[[i]],
        )
    )
    here = slice(whole.offsets[i], whole.offsets[i + 1])
    assert alone.ends.tolist() == whole.ends[here].tolist()
