"""A `MoleculeSet` is what training needs, and can be followed back to the molecules."""

import numpy as np
import pytest
import torch
from _random_molecules import random_molecules

from torchkiln.core import OptionsError, StoreError
from torchkiln.datasets import interaction_pairs, make_molecule_set, molecule_store
from torchkiln.graphs import FixedSizeLoader

DTYPES = {
    "z": torch.int64,
    "edge_index": torch.int64,
    "edge_weight": torch.float32,
    "edge_ways": torch.uint8,
    "y": torch.float32,
    "index": torch.int64,
}


def make(molecules=None, **options):
    options = {"name": "test", "target": "energy", "k": 4, "cutoff_angstrom": 5.0, **options}
    molecules = random_molecules() if molecules is None else molecules
    return make_molecule_set(molecules, progress=False, **options)


def test_the_store_has_one_graph_a_molecule():
    molecules = random_molecules()
    made = make(molecules, standardize=True)
    pairs = interaction_pairs(molecules, k=4, cutoff_angstrom=5.0)
    assert len(made) == len(made.store) == len(molecules)
    for i, graph in enumerate(made.store):
        assert {key: graph[key].dtype for key in DTYPES} == DTYPES
        here = slice(pairs.offsets[i], pairs.offsets[i + 1])
        assert (
            graph.z.tolist()
            == molecules.z[molecules.offsets[i] : molecules.offsets[i + 1]].tolist()
        )
        assert graph.edge_index.tolist() == pairs.edge_index[:, here].tolist()
        assert graph.edge_ways.tolist() == pairs.edge_ways[here].tolist()
        assert (graph.y.shape, graph.index.tolist()) == ((1,), [i])
        assert graph.num_nodes == molecules.num_atoms[i]


def test_targets_are_rounded_after_everything_else():
    molecules = random_molecules()
    heavy = molecules.with_targets({"energy": 1e7 + np.arange(len(molecules)) * 1e-3})
    made = make(heavy, standardize=True)
    y = np.array([graph.y.item() for graph in made.store])
    # Float32 could not tell two of these values apart; their differences survive.
    assert len(np.unique(y)) == len(heavy)
    restored = made.restore(y, np.arange(len(heavy)))
    assert np.abs(restored - made.values).max() < 1e-6


def test_batches_lead_back_to_physical_values():
    made = make(references="fitted", per_atom=True, standardize=True)
    loader = FixedSizeLoader(made.split("train"), num_nodes=64, shuffle=True)
    seen = []
    for batch in loader:
        index = batch.index[batch.graph_mask].numpy()
        restored = made.restore(batch.y[batch.graph_mask].numpy(), index)
        np.testing.assert_allclose(restored, made.values[index], rtol=1e-5)
        assert not batch.edge_ways[~batch.edge_mask].any()
        seen += index.tolist()
    assert sorted(seen) == made.splits["train"].tolist()


def test_splits_are_views_of_the_store():
    made = make(splits=(20, 10, 5), seed=3)
    assert [len(made.split(name)) for name in made.splits] == [20, 10, 5]
    chosen = [graph.index.item() for graph in made.split("test")]
    assert chosen == made.splits["test"].tolist()
    with pytest.raises(OptionsError, match="no split 'val'; choose from train, validation, test"):
        made.split("val")


def test_a_limit_takes_molecules_before_they_are_split():
    made = make(limit=10, seed=5)
    assert len(made) == 10
    assert sum(len(part) for part in made.splits.values()) == 10
    assert made.molecules.names != random_molecules().first(10).names
    assert make(limit=10, seed=5).molecules.names == made.molecules.names
    assert make(limit=10, seed=6).molecules.names != made.molecules.names


def test_a_limit_keeps_to_a_split_that_names_molecules():
    molecules = random_molecules()
    splits = {"train": range(30), "validation": range(30, 35), "test": range(35, 40)}
    made = make(molecules, splits=splits, limit=25)
    for name, numbers in splits.items():
        expected = {molecules.names[i] for i in numbers} & set(made.molecules.names)
        assert {made.molecules.names[i] for i in made.splits[name]} == expected


def test_the_facts_are_plain():
    made = make(unit="kcal/mol", limit=20)
    assert made.describe() == {
        "name": "test",
        "source": "random numbers",
        "target": "energy",
        "unit": "kcal/mol",
        "molecules": 20,
        "splits": {"train": 16, "validation": 2, "test": 2},
        "elements": [1, 6, 7, 8],
        "k": 4,
        "cutoff_angstrom": 5.0,
    }
    assert (made.target, made.unit) == ("energy", "kcal/mol")
    assert str(made).startswith("test: 20 molecules (16 train, 2 validation, 2 test)")


def test_a_missing_value_names_its_molecule():
    molecules = random_molecules()
    values = molecules.targets["energy"].copy()
    values[7] = np.nan
    with pytest.raises(
        StoreError, match=r"1 of 40 .* 'energy', the first is number 8 \(molecule 7\)"
    ):
        make(molecules.with_targets({"energy": values}))


def test_a_missing_value_is_counted_as_in_the_file_also_with_a_limit():
    molecules = random_molecules()
    values = molecules.targets["energy"].copy()
    values[30] = values[33] = np.nan
    with pytest.raises(StoreError, match=r"2 of 39 .* 'energy', the first is number 31 "):
        make(molecules.with_targets({"energy": values}), limit=39, seed=2)


def test_no_molecules_are_an_error():
    with pytest.raises(StoreError, match="random numbers has no molecules"):
        make(random_molecules().first(0))


def test_molecules_without_a_target_have_graphs_too():
    store = molecule_store(random_molecules().first(3))
    assert store[2].y.tolist() == [0.0]
