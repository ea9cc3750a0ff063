"""A store of flat arrays is the store of the same graphs as `Data`."""

import pickle

import numpy as np
import pytest
import torch
from torch_geometric.data import Data

from torchkiln.core import StoreError
from torchkiln.graphs import BatchSpec, GraphStore, collate

NODES, EDGES = [2, 1, 3], [2, 0, 3]


def flat(**changes):
    node_offsets, edge_offsets = np.cumsum([0, *NODES]), np.cumsum([0, *EDGES])
    arrays = {
        "node_offsets": node_offsets,
        "edge_offsets": edge_offsets,
        "node": {"z": np.arange(6)},
        "edge": {
            "edge_index": np.array([[0, 1, 0, 1, 2], [1, 0, 1, 2, 0]]),
            "edge_weight": np.linspace(0, 1, 5, dtype=np.float32),
            "edge_ways": np.arange(5, dtype=np.uint8),
        },
        "graph": {"y": np.array([[1.5], [2.5], [3.5]], dtype=np.float32), "index": np.arange(3)},
    }
    arrays["graph"]["index"] = arrays["graph"]["index"][:, None]
    return {**arrays, **changes}


def same_graphs():
    arrays = flat()
    for i in range(3):
        nodes = slice(*arrays["node_offsets"][i : i + 2])
        edges = slice(*arrays["edge_offsets"][i : i + 2])
        yield Data(
            z=torch.from_numpy(arrays["node"]["z"][nodes]),
            edge_index=torch.from_numpy(arrays["edge"]["edge_index"][:, edges]),
            edge_weight=torch.from_numpy(arrays["edge"]["edge_weight"][edges]),
            edge_ways=torch.from_numpy(arrays["edge"]["edge_ways"][edges]),
            y=torch.from_numpy(arrays["graph"]["y"][i]),
            num_nodes=NODES[i],
        )


def test_graphs_are_those_made_of_data():
    store, expected = GraphStore.from_arrays(**flat()), GraphStore.from_dataset(same_graphs())
    for got, want, number in zip(store, expected, range(3), strict=True):
        assert got.num_nodes == want.num_nodes == NODES[number]
        assert got.index.tolist() == [number]
        for key in ("z", "edge_index", "edge_weight", "edge_ways", "y"):
            assert got[key].dtype == want[key].dtype
            assert torch.equal(got[key], want[key])
    assert store.sizes["nodes"].tolist() == NODES
    assert store.sizes["edges"].tolist() == EDGES


def test_batches_are_those_made_of_data():
    spec = BatchSpec(9, 8, 5)
    batch = collate(GraphStore.from_arrays(**flat()), [2, 0, 1], spec)
    expected = collate(GraphStore.from_dataset(same_graphs()), [2, 0, 1], spec)
    for key in expected.keys():  # noqa: SIM118 - a batch iterates over pairs
        got, want = batch[key], expected[key]
        assert torch.equal(got, want) if isinstance(want, torch.Tensor) else got == want
    # Not counted up, though PyG would do so with this name.
    assert batch.index[batch.graph_mask].tolist() == [2, 0, 1]
    assert batch.to_data_list()[0].index.tolist() == [2]


def test_nothing_is_copied_and_nobody_writes_through_the_store():
    arrays = flat()
    store = GraphStore.from_arrays(**arrays)
    weight = store.columns.arrays["edge_weight"]
    assert np.shares_memory(weight, arrays["edge"]["edge_weight"])
    assert not weight.flags.writeable


def test_it_is_saved_pickled_and_viewed_like_any_other(tmp_path):
    store = GraphStore.from_arrays(**flat())
    for other in (store.save(tmp_path / "store"), pickle.loads(pickle.dumps(store))):
        assert torch.equal(other[2].edge_index, store[2].edge_index)
        assert other[[2, 1]][0].index.tolist() == [2]


def test_nodes_that_tell_their_number_need_no_num_nodes():
    store = GraphStore.from_arrays(**flat(node={"x": np.zeros((6, 4), dtype=np.float32)}))
    assert "num_nodes" not in store[0]
    assert store[0].num_nodes == 2


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"node_offsets": [0, 2, 6]}, "of 2 graphs and edge_offsets of 3"),
        ({"node_offsets": [0, 3, 2, 6]}, "offsets of nodes must begin with 0 and never fall"),
        ({"node_offsets": [1, 2, 3, 6]}, "offsets of nodes must begin with 0"),
        ({"edge_offsets": [0.0, 2, 2, 5]}, "offsets of edges must be whole numbers"),
        ({"node_offsets": [0], "edge_offsets": [0]}, "for at least one graph"),
        (
            {"node": {"z": np.arange(5)}},
            r"node attribute 'z' is int64 \[5\]; it must be \[6, ...\]",
        ),
        ({"graph": {"y": np.float32(1)}}, "one entry for each graph"),
        ({"graph": {"z": np.arange(3)}}, "'z' is given twice"),
        ({"edge": {"edge_index": np.zeros((5, 2), dtype=int)}}, r"whole numbers \[2, 5\]"),
        ({"edge": {"edge_index": np.full((2, 5), 3)}}, "graph 0 has an edge to node 3"),
        ({"graph": {"name": np.array(["a", "b", "c"])}}, "torch has no dtype"),
    ],
)
def test_arrays_that_do_not_fit_are_refused(changes, words):
    with pytest.raises(StoreError, match=words):
        GraphStore.from_arrays(**flat(**changes))
