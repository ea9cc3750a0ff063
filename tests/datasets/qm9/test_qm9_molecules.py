"""QM9 ready for training."""

import numpy as np
import pytest

from torchkiln.core import OptionsError
from torchkiln.datasets import load_qm9
from torchkiln.datasets._sizes import count_neighbors


@pytest.fixture
def load(qm9_tables):
    return lambda **options: load_qm9(root=qm9_tables, progress=False, **options)


def test_the_defaults_are_total_energies_within_ten_angstrom(load, molecules):
    made = load()
    assert (made.name, made.target, made.unit) == ("QM9", "U0", "eV")
    assert (made.k, made.cutoff_angstrom) == (None, 10.0)
    near = count_neighbors(molecules, 10.0)
    assert (2 * made.store.sizes["edges"]).tolist() == near.tolist()
    np.testing.assert_array_equal(
        [graph.y.item() for graph in made.store], made.values.astype(np.float32)
    )


def test_the_formation_energy_per_atom_is_standardised(load):
    made = load(references="atoms", per_atom=True, standardize=True)
    y = np.array([graph.y.item() for graph in made.split("train")])
    assert abs(y.mean()) < 1e-6
    assert abs(y.std() - 1) < 1e-6
    every = np.arange(len(made))
    learned = np.array([graph.y.item() for graph in made.store])
    # float32 of numbers around 1, times the spread of about 3 eV a molecule.
    assert np.abs(made.restore(learned, every) - made.values).max() < 1e-5


def test_other_targets_neighbours_and_seeds(load):
    made = load(target="gap", k=5, cutoff_angstrom=3.0, seed=1, limit=50, splits="60/20/20")
    assert (made.target, made.k) == ("gap", 5)
    assert [len(part) for part in made.splits.values()] == [30, 10, 10]
    assert set(np.concatenate([g.edge_ways for g in made.store]).tolist()) == {1, 2, 3}
    assert load(limit=50, seed=2).molecules.names != made.molecules.names


def test_the_split_of_the_papers_needs_all_of_qm9(load):
    with pytest.raises(OptionsError, match="'schnet' takes 110,000"):
        load(splits="schnet")


def test_unknown_targets_are_refused(load):
    with pytest.raises(OptionsError, match="no target 'U7'; choose from mu"):
        load(target="U7")
