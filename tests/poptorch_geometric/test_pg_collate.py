import pytest
import torch
from _pg_graphs import WROTE, load_mutag, make_graph, make_hetero
from torch_geometric.data import Batch, Data

from poptorch_geometric import FixedSizeOptions, make_exclude_keys
from poptorch_geometric.collate import CombinedBatchingCollater, FixedSizeCollater
from poptorch_geometric.pyg_collate import Collater


def make_collater(num_nodes=10, num_edges=12, num_graphs=4, **settings):
    return FixedSizeCollater(FixedSizeOptions(num_nodes, num_edges, num_graphs), **settings)


def test_the_documented_example():
    batch = make_collater(add_masks_to_batch=True)([make_graph(3, 4), make_graph(2, 3)])
    assert batch.ptr.tolist() == [0, 3, 5, 8, 10]
    assert batch.batch.tolist() == [0, 0, 0, 1, 1, 2, 2, 2, 3, 3]
    assert batch.edge_index[:, 7:].tolist() == [[5, 5, 5, 8, 8]] * 2
    assert batch.nodes_mask.tolist() == [True] * 5 + [False] * 5
    assert batch.edges_mask.tolist() == [True] * 7 + [False] * 5
    assert batch.graphs_mask.tolist() == [True, True, False, False]


def test_without_masks_there_are_none():
    batch = make_collater()([make_graph()])
    assert not any("mask" in name for name in batch.stores[0])


def test_real_molecules_equal_the_plain_batch(tmp_path):
    graphs = list(load_mutag(tmp_path)[:20])
    padded, plain = make_collater(600, 1400, 25)(graphs), Batch.from_data_list(graphs)
    for name in ("x", "edge_attr", "y", "batch"):
        assert torch.equal(padded[name][: len(plain[name])], plain[name]), name
    assert torch.equal(padded.edge_index[:, : plain.num_edges], plain.edge_index)


def test_node_labels_are_padded_to_nodes():
    graphs = [Data(x=torch.ones(n, 1), edge_index=torch.zeros(2, 1).long()) for n in (3, 2)]
    for graph in graphs:
        graph.y = torch.ones(graph.num_nodes)
    assert make_collater()(graphs).y.tolist() == [1] * 5 + [0] * 5


@pytest.mark.parametrize(("nodes", "rows"), [([3, 2], [3, 1]), ([3, 2], [2, 2]), ([1, 1], [1, 1])])
def test_labels_must_be_of_one_level(nodes, rows):
    graphs = [make_graph(n, 1) for n in nodes]
    for graph, count in zip(graphs, rows, strict=True):
        graph.y = torch.ones(count)
    with pytest.raises(AssertionError, match="Labels y"):
        make_collater()(graphs)
    make_collater(exclude_keys=["y"])(graphs)


def test_only_lists_are_taken():
    with pytest.raises(TypeError, match=r"Expected list, got tuple\."):
        make_collater()((make_graph(),))


def test_samples_must_be_of_one_class():
    with pytest.raises(AssertionError, match="one class"):
        make_collater()([make_graph(), make_hetero()])


@pytest.mark.parametrize("count", [4, 5])
def test_there_must_be_room_for_a_padding_graph(count):
    with pytest.raises(RuntimeError, match="at least one padding graph"):
        make_collater(100, 100)([make_graph()] * count)


@pytest.mark.parametrize(
    ("sizes", "what"), [((10, 3), "nodes"), ((11, 3), "nodes"), ((3, 13), "edges")]
)
def test_too_large_batches_are_an_error(sizes, what):
    message = f"The fixed sizes given don't allocate enough space for the number of {what}"
    with pytest.raises(RuntimeError, match=message):
        make_collater()([make_graph(*sizes)])


def test_trimming_leaves_one_node_for_padding():
    collater = make_collater(trim_nodes=True, trim_edges=True, add_masks_to_batch=True)
    batch = collater([make_graph(30, 90), make_graph(20, 90)])
    assert int(batch.nodes_mask.sum()) == 9
    assert batch.edge_index.shape == (2, 12)
    assert int(batch.edge_index.max()) <= 9


def test_trimming_cannot_empty_graphs():
    with pytest.raises(RuntimeError, match="would empty graphs"):
        make_collater(5, 100, 8, trim_nodes=True)([make_graph()] * 6)


def test_numbers_are_expanded_for_heterogeneous_samples():
    collater = make_collater(add_masks_to_batch=True)
    batch = collater([make_hetero(4, 2)])
    assert collater.fixed_size_options.num_nodes == {"author": 10, "paper": 10}
    assert batch["paper"].x.shape == (10, 3)
    assert batch[WROTE].edges_mask.tolist() == [True] * 5 + [False] * 7
    assert batch["author"].nodes_mask.tolist() == [True] * 4 + [False] * 6
    assert batch.graphs_mask.tolist() == [True] + [False] * 3


def test_types_without_a_size_are_named():
    collater = FixedSizeCollater(FixedSizeOptions({"author": 5}, {WROTE: 9}))
    with pytest.raises(AssertionError, match="paper"):
        collater([make_hetero()])
    collater = FixedSizeCollater(FixedSizeOptions({"author": 2, "paper": 9}, {WROTE: 9}))
    with pytest.raises(RuntimeError, match=r"number of nodes.*'author'"):
        collater([make_hetero()])


def test_padding_graphs_take_defaults():
    options = FixedSizeOptions(10, 12, 3, graph_pad_value=-1, pad_graph_defaults={"name": "pad"})
    batch = FixedSizeCollater(options)([make_graph(name="real", level=2)])
    assert batch.name == ["real", "pad", "pad"]
    assert batch.level.tolist() == [2, 2, 2]
    assert batch.y[1:].tolist() == [-1, -1]


def test_the_given_list_is_left_alone():
    graphs = [make_graph()]
    make_collater()(graphs)
    assert len(graphs) == 1


def test_combined_batches_are_stacked_without_offsets():
    graphs = [make_graph(3, 4, name="x"), make_graph(2, 3, name="y"), make_graph(4, 2, name="z")]
    collater = make_collater(add_masks_to_batch=True)
    combined = CombinedBatchingCollater(collater, mini_batch_size=1)(graphs)
    shapes = {key: tuple(value.shape) for key, value in combined.stores[0].items()
              if isinstance(value, torch.Tensor)}  # fmt: skip
    assert shapes == {
        "x": (30, 3),
        "edge_index": (6, 12),
        "edge_attr": (36, 2),
        "y": (12,),
        "batch": (30,),
        "edges_mask": (36,),
        "graphs_mask": (12,),
        "nodes_mask": (30,),
        "ptr": (15,),
    }
    assert list(combined.stores[0])[-2:] == ["num_nodes", "num_edges"]
    assert (combined.num_nodes, combined.num_edges, combined.num_graphs) == (10, 12, 4)
    assert "name" not in combined
    for i, graph in enumerate(graphs):
        part = collater([graph])
        assert torch.equal(combined.edge_index[2 * i : 2 * i + 2], part.edge_index)
        assert torch.equal(combined.ptr[5 * i : 5 * i + 5], part.ptr)


def test_one_chunk_takes_everything():
    combined = CombinedBatchingCollater(make_collater())([make_graph(), make_graph()])
    assert combined.ptr.tolist() == [0, 3, 6, 8, 10]


def test_incomplete_mini_batches_are_refused():
    with pytest.raises(AssertionError, match="Invalid batch size"):
        CombinedBatchingCollater(make_collater(), mini_batch_size=2)([make_graph()] * 3)


def test_pygs_collater_needs_no_arguments():
    batch = Collater()([make_graph(3, 4), make_graph(2, 3)])
    assert batch.ptr.tolist() == [0, 3, 5]
    batch = Collater(follow_batch=["edge_attr"], exclude_keys=["y"])([make_graph(3, 4)])
    assert batch.edge_attr_batch.tolist() == [0] * 4
    assert "y" not in batch


def test_keys_to_exclude_are_all_but_the_included():
    assert set(make_exclude_keys(["x", "y"], make_graph())) == {"edge_index", "edge_attr"}

    class Older:
        keys = ["x", "z"]  # a property before PyG 2.4

    assert make_exclude_keys(("x",), Older()) == ("z",)


def test_what_no_graph_tells_is_refused_with_a_remedy():
    collate = FixedSizeCollater(FixedSizeOptions(8, 8, 3))
    with pytest.raises(AssertionError, match=r"exclude_keys=\['idx'\]"):
        collate([make_graph(n, 1, idx=torch.tensor([i])) for i, n in enumerate((4, 3))])
