"""All of QM9, from the tables of qm9pack to the class of PyG."""

import importlib.util

import numpy as np
import pytest
import torch
from torch_geometric.data.summary import Summary
from torch_geometric.datasets import QM9

from torchkiln.datasets import (
    QM9_TARGETS,
    TargetTransform,
    load_qm9,
    load_sizes,
    qm9_arrays,
    write_qm9_root,
)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(3600),
    pytest.mark.skipif(
        importlib.util.find_spec("qm9pack") is None,
        reason="needs qm9pack, the source of QM9 (pip install qm9pack)",
    ),
]
NUM_MOLECULES = 130_831


def statistics(sizes):
    """What the document's summary prints, with its one decimal."""
    quartiles = np.quantile(sizes, [0.25, 0.5, 0.75]).tolist()
    return [round(float(sizes.mean()), 1), round(float(sizes.std()), 1), *quartiles]


def test_sizes_are_those_of_the_document():
    sizes = load_sizes("qm9")
    assert len(sizes["nodes"]) == len(sizes["edges"]) == NUM_MOLECULES
    assert statistics(sizes["nodes"]) == [18.0, 2.9, 16, 18, 20]
    assert statistics(sizes["edges"]) == [37.3, 6.3, 34, 38, 42]
    assert (sizes["nodes"].min(), sizes["nodes"].max()) == (3, 29)
    assert (sizes["edges"].min(), sizes["edges"].max()) == (4, 56)


def test_every_molecule_is_connected_and_its_valences_are_full():
    arrays = qm9_arrays(progress=False)
    start = np.repeat(arrays.offsets[:-1], arrays.num_bonds)
    ends = arrays.bond_ends + start[:, None]
    valences = np.bincount(ends.ravel(), weights=np.repeat(arrays.bond_orders, 2))
    charged = arrays.charges != 0
    expected = np.zeros(10)
    expected[[1, 6, 7, 8, 9]] = [1, 4, 3, 2, 1]
    odd = ~charged & (valences != expected[arrays.z])
    # Nitro groups, which QM9 writes with five bonds.
    assert (arrays.z[odd] == 7).all()
    assert (valences[odd] == 5).all()
    # The smallest number in each component sinks to all its members.
    label = np.arange(len(arrays.z))
    while True:
        lower = label.copy()
        np.minimum.at(lower, ends[:, 0], label[ends[:, 1]])
        np.minimum.at(lower, ends[:, 1], label[ends[:, 0]])
        if np.array_equal(lower, label):
            break
        label = lower
    assert len(np.unique(label)) == NUM_MOLECULES


def test_everything_is_ready_for_training_and_comes_back():
    made = load_qm9(
        splits="schnet", references="atoms", per_atom=True, standardize=True, progress=False
    )
    assert [len(part) for part in made.splits.values()] == [110_000, 10_000, 10_831]
    near = load_sizes("qm9", cutoff_angstrom=10.0)
    assert np.array_equal(2 * made.store.sizes["edges"], near["edges"])
    molecules = made.molecules
    for target in QM9_TARGETS:
        transform = TargetTransform.fit(
            molecules, target, made.splits["train"], references="fitted", standardize=True
        )
        values = molecules.targets[target]
        y = transform.apply(values, molecules.z, molecules.offsets)
        restored = transform.restore(y, molecules.z, molecules.offsets)
        np.testing.assert_allclose(restored, values, rtol=0, atol=1e-12 * np.abs(values).max())
    # What is learned is float32; that costs no more than float32 costs anything.
    learned = made.store.columns.arrays["y"][:, 0]
    assert np.abs(made.restore(learned, np.arange(len(made))) - made.values).max() < 2e-5


def test_the_class_gives_the_same_molecules_by_every_route(tmp_path):
    root = str(write_qm9_root(tmp_path, progress=False))
    processed = QM9(root)
    assert str(processed) == f"QM9({NUM_MOLECULES})"
    summary = Summary.from_dataset(processed, progress_bar=False)
    assert round(summary.num_nodes.mean, 1) == 18.0
    assert round(summary.num_edges.mean, 1) == 37.3
    # From qm9_v3.pt, or where RDKit is installed from gdb9.sdf.
    again = QM9(root, force_reload=True)
    assert again._data["name"] == processed._data["name"]
    for name in ("x", "edge_index", "edge_attr", "y", "pos", "idx", "z"):
        assert torch.equal(again._data[name], processed._data[name])
        assert torch.equal(again.slices[name], processed.slices[name])
