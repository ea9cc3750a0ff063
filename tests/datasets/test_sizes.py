import numpy as np
import pytest

from torchkiln.core import OptionsError
from torchkiln.datasets import _sizes as module
from torchkiln.datasets import load_sizes


def test_sizes_are_those_of_the_graphs(qm9_tables, molecules):
    sizes = load_sizes("qm9", source=qm9_tables)
    assert sorted(sizes) == ["edges", "nodes"]
    assert sizes["nodes"].tolist() == molecules.num_atoms.tolist()
    assert sizes["edges"].tolist() == (2 * molecules.num_bonds).tolist()


@pytest.mark.parametrize("cutoff", [1.3, 5.0, 100.0])
def test_a_cutoff_counts_ordered_pairs_within_it(qm9_tables, molecules, cutoff):
    edges = load_sizes("qm9", source=qm9_tables, cutoff_angstrom=cutoff)["edges"]
    for i in range(0, len(molecules), 50):
        pos = molecules.pos[molecules.offsets[i] : molecules.offsets[i + 1]]
        distances = np.linalg.norm(pos[:, None] - pos[None], axis=-1)
        assert edges[i] == (distances <= cutoff).sum() - len(pos)


def test_molecules_taken_in_several_steps_are_counted_alike(molecules, monkeypatch):
    at_once = module.count_neighbors(molecules, 3.0)
    monkeypatch.setattr(module, "_PAIRS_PER_STEP", 300)
    assert module.count_neighbors(molecules, 3.0).tolist() == at_once.tolist()


def test_each_kind_of_edges_is_counted_once(qm9_tables, monkeypatch):
    bonds = load_sizes("qm9", source=qm9_tables)
    near = load_sizes("qm9", source=qm9_tables, cutoff_angstrom=2.0)
    monkeypatch.setattr(module, "qm9_arrays", None)
    assert load_sizes("qm9", source=qm9_tables)["edges"].tolist() == bonds["edges"].tolist()
    again = load_sizes("qm9", source=qm9_tables, cutoff_angstrom=2)
    assert again["edges"].tolist() == near["edges"].tolist()
    assert again["edges"].sum() > bonds["edges"].sum()


@pytest.mark.parametrize("cutoff", [0.0, -1.0, float("nan"), float("inf")])
def test_a_cutoff_is_a_positive_length(cutoff):
    with pytest.raises(OptionsError, match="positive length"):
        load_sizes("qm9", cutoff_angstrom=cutoff)


def test_an_unknown_dataset_is_refused():
    with pytest.raises(OptionsError, match="unknown dataset 'qm7'; choose from: qm9"):
        load_sizes("qm7")
