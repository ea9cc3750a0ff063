"""Batches gathered from a store are those that PyG makes of the same graphs, with filler."""

from __future__ import annotations

import importlib.util
import pickle

import numpy as np
import pytest
import torch
from _stored_graphs import (
    assert_same_graph,
    assert_same_value,
    rich_graph,
    rich_graphs,
    two_type_graph,
    two_type_graphs,
)
from torch_geometric.data import Batch, Data

from torchkiln.core import BatchTooLarge, OptionsError
from torchkiln.graphs._errors import GraphError
from torchkiln.graphs._spec import BatchSpec, PadValues
from torchkiln.graphs.batches._collate import Collator, collate, collate_combined
from torchkiln.graphs.batches._combine import combine
from torchkiln.graphs.batches._pad import pad_batch
from torchkiln.graphs.store._store import GraphStore

SPEC = BatchSpec(30, 40, 8)
WRITES, CITES = ("author", "writes", "paper"), ("paper", "cites", "paper")
TYPED_SPEC = BatchSpec({"paper": 20, "author": 12}, {WRITES: 15, CITES: 21}, 7)


@pytest.fixture(scope="module")
def graphs():
    return rich_graphs()


@pytest.fixture(scope="module")
def store(graphs):
    return GraphStore.from_dataset(graphs, progress=False)


@pytest.fixture(scope="module")
def typed_graphs():
    return two_type_graphs()


@pytest.fixture(scope="module")
def typed_store(typed_graphs):
    return GraphStore.from_dataset(typed_graphs, progress=False)


@pytest.mark.parametrize("indices", [[3], [5, 0, 11, 2], [1, 2, 3, 4, 6, 7], [4, 4]])
@pytest.mark.parametrize("pad", [PadValues(), PadValues(1.5, 2, 3, {"z": 7, "target": -1})])
def test_a_batch_is_that_of_padding_a_list(graphs, store, indices, pad):
    got = collate(store, indices, SPEC, pad=pad)
    assert_same_graph(got, pad_batch([graphs[i] for i in indices], SPEC, pad=pad))
    assert got.num_graphs == SPEC.num_graphs


@pytest.mark.parametrize("indices", [[3], [5, 0, 2], [1, 2, 4, 5]])
def test_a_typed_batch_is_that_of_padding_a_list(typed_graphs, typed_store, indices):
    got = collate(typed_store, indices, TYPED_SPEC)
    assert_same_graph(got, pad_batch([typed_graphs[i] for i in indices], TYPED_SPEC))


def test_the_real_part_is_pygs_own_batch(graphs, store):
    indices = [5, 0, 11, 2]
    plain = Batch.from_data_list([graphs[i] for i in indices])
    batch = collate(store, indices, SPEC)
    for key in ("x", "edge_attr", "y", "batch", "tag", "charge", "wave", "train_mask", "target"):
        assert_same_value(batch[key][: len(plain[key])], plain[key], key)
    assert torch.equal(batch.edge_index[:, : plain.num_edges], plain.edge_index)
    assert torch.equal(batch.ptr[:5], plain.ptr)
    assert batch.name[:4] == plain.name
    assert batch.node_mask.sum() == plain.num_nodes
    assert batch.edge_mask.sum() == plain.num_edges
    assert batch.graph_mask.tolist() == [True] * 4 + [False] * 4


def test_the_example_of_the_specification():
    two = [
        Data(x=torch.ones(3, 1), edge_index=torch.tensor([[0, 1, 2, 0], [1, 2, 0, 2]])),
        Data(x=torch.ones(2, 1), edge_index=torch.tensor([[0, 1, 1], [1, 0, 1]])),
    ]
    batch = collate(GraphStore.from_dataset(two, progress=False), [0, 1], BatchSpec(10, 12, 4))
    assert batch.ptr.tolist() == [0, 3, 5, 8, 10]
    assert batch.batch.tolist() == [0, 0, 0, 1, 1, 2, 2, 2, 3, 3]
    assert batch.edge_index[:, 7:].tolist() == [[5, 5, 5, 8, 8]] * 2


def test_an_exactly_full_batch_looks_like_any_other(graphs, store):
    indices = [3, 4]
    nodes = sum(graphs[i].num_nodes for i in indices)
    edges = sum(graphs[i].num_edges for i in indices)
    full = collate(store, indices, BatchSpec(nodes + 1, edges, 3))
    assert full.ptr.tolist()[-2:] == [nodes, nodes + 1]
    assert full.node_mask.tolist() == [True] * nodes + [False]
    assert full.edge_mask.all()


def test_a_batch_of_nothing_is_all_filler(store):
    batch = collate(store, [], SPEC)
    assert not any(mask.any() for mask in (batch.graph_mask, batch.node_mask, batch.edge_mask))
    assert batch.x.abs().sum() == 0
    assert batch.ptr.tolist() == [0, 4, 8, 12, 16, 20, 24, 27, 30]
    assert batch.name == [store[0].name] * 8
    assert batch.charge.tolist() == [store[0].charge] * 8


def test_a_typed_batch_of_nothing_is_all_filler(typed_graphs, typed_store):
    got = collate(typed_store, [], TYPED_SPEC)
    assert_same_graph(got, pad_batch([], TYPED_SPEC, like=typed_graphs[0]))


def test_graphs_can_be_taken_out_of_the_batch_again(graphs, store):
    indices = [5, 0, 11]
    batch = collate(store, indices, SPEC)
    plain = Batch.from_data_list([graphs[i] for i in indices])
    found = batch.to_data_list()
    assert len(found) == SPEC.num_graphs
    for got, expected in zip(found, plain.to_data_list(), strict=False):
        assert_same_graph(got, expected)


def test_typed_graphs_can_be_taken_out_of_the_batch_again(typed_graphs, typed_store):
    batch = collate(typed_store, [4, 1], TYPED_SPEC)
    plain = Batch.from_data_list([typed_graphs[4], typed_graphs[1]])
    for index in range(2):
        assert_same_graph(batch[index], plain[index])


@pytest.mark.parametrize("packs", [[[3]], [[5, 0], [1, 2, 3]], [[7], [], [2, 9, 4]]])
def test_a_combined_batch_is_mini_batches_joined(graphs, store, packs):
    got = collate_combined(store, packs, SPEC)
    expected = combine([collate(store, pack, SPEC) for pack in packs])
    assert_same_graph(got, expected)
    assert list(got.edge_index.shape) == [2 * len(packs), 40]
    assert list(got.ptr.shape) == [len(packs) * 9]
    assert (got.num_nodes, got.num_edges, got.num_graphs) == (30, 40, 8)
    assert "name" not in got


def test_a_combined_typed_batch_is_mini_batches_joined(typed_store):
    packs = [[5, 0], [], [1, 2, 3]]
    got = collate_combined(typed_store, packs, TYPED_SPEC)
    assert_same_graph(got, combine([collate(typed_store, pack, TYPED_SPEC) for pack in packs]))


def test_collating_a_view_counts_its_own_graphs(graphs, store):
    got = collate(store[[7, 3, 5]], [2, 0], SPEC)
    assert_same_graph(got, pad_batch([graphs[5], graphs[7]], SPEC))


def test_collating_mapped_files(graphs, store, tmp_path):
    saved = store.save(tmp_path / "store")
    assert_same_graph(collate(saved, [2, 8], SPEC), collate(store, [2, 8], SPEC))


def test_masks_can_be_left_out(store):
    batch = collate(store, [1], SPEC, masks=False)
    assert not {"node_mask", "edge_mask", "graph_mask"} & set(batch.keys())


def test_attributes_can_be_left_out(store):
    batch = collate(store, [1], SPEC, exclude_keys=["name", "x", "history"])
    assert not {"name", "x", "history"} & set(batch.keys())


def test_defaults_of_what_is_not_a_tensor(store):
    batch = collate(store, [1, 2], SPEC, defaults={"name": "none", "charge": 99})
    assert batch.name[2:] == ["none"] * 6
    assert batch.charge.tolist() == [-2, -1] + [99] * 6


def test_int32_edges_stay_int32():
    graphs = [
        Data(x=torch.rand(3, 1), edge_index=torch.tensor([[0, 1], [1, 2]], dtype=torch.int32))
    ] * 2
    store = GraphStore.from_dataset(graphs, progress=False)
    spec = BatchSpec(9, 6, 4)
    assert_same_graph(collate(store, [0, 1], spec), pad_batch(graphs, spec))


def test_points_without_edges():
    clouds = [Data(pos=torch.rand(i + 1, 3)) for i in range(3)]
    store = GraphStore.from_dataset(clouds, progress=False)
    spec = BatchSpec(9, 0, 5)
    assert_same_graph(collate(store, [0, 2], spec), pad_batch([clouds[0], clouds[2]], spec))


def test_a_full_graph_slot_without_nodes_has_no_edges():
    # More filler graphs than filler nodes: those without a node hold no edge.
    graph = Data(x=torch.ones(3, 1), edge_index=torch.tensor([[0], [1]]))
    spec = BatchSpec(5, 8, 6)
    store = GraphStore.from_dataset([graph], progress=False)
    got = collate(store, [0], spec)
    assert_same_graph(got, pad_batch([graph], spec))
    assert int(got.edge_index.max()) < 5


@pytest.mark.parametrize(
    ("spec", "indices", "message"),
    [
        (BatchSpec(30, 40, 3), [1, 2, 3], "3 graphs leave no room for a filler graph"),
        (BatchSpec(7, 40, 8), [1, 2], "2 graphs have 7 nodes, but a batch holds 7, of which one"),
        (
            BatchSpec(30, 8, 8),
            [1, 2],
            "2 graphs have 9 edges, but a batch holds 8; raise num_edges",
        ),
    ],
)
def test_what_does_not_fit_is_an_error(store, spec, indices, message):
    with pytest.raises(BatchTooLarge, match=message):
        collate(store, indices, spec)


def test_too_many_of_a_type(typed_store):
    spec = BatchSpec({"paper": 20, "author": 3}, {WRITES: 15, CITES: 21}, 7)
    with pytest.raises(BatchTooLarge, match="nodes of 'author'"):
        collate(typed_store, [3], spec)


def test_a_graph_that_is_not_there(store):
    with pytest.raises(IndexError, match="graph 12 of a store"):
        collate(store, [12], SPEC)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (TYPED_SPEC, "needs numbers"),
        (BatchSpec({"paper": 20}, {WRITES: 15, CITES: 21}, 7), "needs numbers"),
    ],
)
def test_a_spec_for_other_graphs(store, spec, message):
    with pytest.raises(OptionsError, match=message):
        collate(store, [1], spec)


def test_a_spec_without_a_type(typed_store):
    spec = BatchSpec({"paper": 20}, {WRITES: 15, CITES: 21}, 7)
    with pytest.raises(OptionsError, match="num_nodes has no entry for the type 'author'"):
        collate(typed_store, [1], spec)
    with pytest.raises(OptionsError, match="needs dicts by type"):
        collate(typed_store, [1], SPEC)


def test_a_pad_value_that_does_not_fit(store):
    with pytest.raises(OptionsError, match=r"1e\+30.*'z'"):
        collate(store, [1], SPEC, pad=PadValues(node=1e30))


def test_an_attribute_of_no_fixed_size():
    graphs = [Data(x=torch.rand(5, 1), path=torch.rand(n)) for n in (2, 3)]
    store = GraphStore.from_dataset(graphs, progress=False)
    with pytest.raises(GraphError, match=r"exclude_keys=\['path'\]"):
        collate(store, [0], SPEC)
    assert "path" not in collate(store, [0], SPEC, exclude_keys=["path"])


def test_an_attribute_with_the_name_of_a_mask():
    graphs = [Data(x=torch.rand(2, 1), node_mask=torch.ones(2, dtype=bool))]
    store = GraphStore.from_dataset(graphs, progress=False)
    with pytest.raises(GraphError, match="name of a mask"):
        collate(store, [0], SPEC)
    assert collate(store, [0], SPEC, masks=False).node_mask.sum() == 2


def test_a_collator_can_be_sent_to_another_process(store):
    collator = pickle.loads(pickle.dumps(Collator(store, SPEC, exclude_keys=["x"])))
    assert_same_graph(collator([[1, 2]]), collate(store, [1, 2], SPEC, exclude_keys=["x"]))


def test_what_another_process_gathered_is_wrapped_here(store):
    collator = Collator(store, SPEC)
    sent = pickle.loads(pickle.dumps(collator.gather([[[1, 2]]])))
    assert_same_graph(collator.wrap(sent, 0), collate(store, [1, 2], SPEC))


@pytest.mark.parametrize("combined", [False, True])
def test_batches_made_together_are_those_made_alone(store, combined):
    batches = [[[1, 2]], [[]], [[7, 3, 5]]]
    if combined:
        batches = [[*batch, [4]] for batch in batches]
    collator = Collator(store, SPEC, num_packs=2 if combined else None)
    together = collator.gather(batches)
    for number, packs in enumerate(batches):
        got = collator.wrap(together, number)
        assert_same_graph(got, collator(packs))
        if not combined:
            assert_same_graph(got[0], collator(packs)[0])


def test_tensors_are_aligned(store):
    batch = collate(store, [1, 2], SPEC)
    for key in ("x", "edge_index", "edge_attr", "y", "node_mask"):
        assert batch[key].data_ptr() % 64 == 0
        assert batch[key].is_contiguous()


def check_induced(batch, position, graph, limit):
    """The graph at `position` is an induced sub-graph of `graph`, in its order."""
    got = batch[position]
    rows = (graph.x[:, None] == got.x[None]).all(-1)  # features are unique
    kept = rows.any(1).nonzero().flatten()
    assert len(kept) == len(got.x) <= limit
    assert torch.equal(graph.x[kept], got.x)
    assert torch.equal(graph.z[kept], got.z)
    edges = kept[got.edge_index]
    inside = torch.isin(graph.edge_index, kept).all(0)
    assert torch.equal(edges, graph.edge_index[:, inside])
    assert torch.equal(got.edge_attr, graph.edge_attr[inside])


@pytest.mark.parametrize("combined", [False, True])
def test_a_graph_that_is_too_large_is_trimmed(combined):
    giant = rich_graph(50, 60, 45)
    small = rich_graphs(3)
    store = GraphStore.from_dataset([*small, giant], progress=False)
    if combined:
        whole = collate_combined(store, [[0], [3], [1, 2]], SPEC, trim=(7, 1))
        assert torch.equal(whole.edge_index[2:4], collate(store, [3], SPEC, trim=(7, 1)).edge_index)
        assert torch.equal(whole.x[30:60], collate(store, [3], SPEC, trim=(7, 1)).x)
        return
    batch = collate(store, [3], SPEC, trim=(7, 1))
    check_induced(batch, 0, giant, 29)
    assert batch.node_mask.sum() == 29


def test_too_many_edges_are_trimmed():
    dense = rich_graph(50, 10, 90)
    store = GraphStore.from_dataset([dense], progress=False)
    batch = collate(store, [0], SPEC, trim=(7, 1))
    assert batch.node_mask.sum() == 10
    assert batch.edge_mask.sum() == 39
    ends = {tuple(edge) for edge in dense.edge_index.T.tolist()}
    assert {tuple(edge) for edge in batch.edge_index[:, :39].T.tolist()} <= ends


def test_a_typed_graph_is_trimmed():
    giant = two_type_graph(3, 40, 30, 60)
    store = GraphStore.from_dataset([giant], progress=False)
    batch = collate(store, [0], TYPED_SPEC, trim=(0, 0))
    assert batch["paper"].node_mask.sum() == 19
    assert batch["author"].node_mask.sum() == 11
    papers = (giant["paper"].x[:, None] == batch["paper"].x[None, :19]).all(-1).nonzero()[:, 0]
    authors_of = giant[WRITES].edge_index[0][torch.isin(giant[WRITES].edge_index[1], papers)]
    real = batch[WRITES].edge_mask
    assert 0 < real.sum() <= min(14, len(authors_of))
    kept = papers[batch[WRITES].edge_index[1, real]]
    rows = [tuple(row) for row in giant[WRITES].edge_attr.tolist()]
    for edge, paper in zip(batch[WRITES].edge_attr[real].tolist(), kept.tolist(), strict=True):
        assert giant[WRITES].edge_index[1, rows.index(tuple(edge))] == paper


def test_trimming_depends_on_the_key_alone():
    store = GraphStore.from_dataset([rich_graph(50, 60, 45)], progress=False)
    first, again, other = (
        collate(store, [0], SPEC, trim=key).x for key in ((1, 2), (1, 2), (1, 3))
    )
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def check_against_pyg(dataset, store, num_nodes, num_edges, num_graphs, packs):
    spec = BatchSpec(num_nodes, num_edges, num_graphs)
    collator = Collator(store, spec)
    for pack in packs:
        plain = Batch.from_data_list([dataset[int(i)] for i in pack])
        batch = collator([pack])
        nodes, edges = plain.num_nodes, plain.num_edges
        assert torch.equal(batch.edge_index[:, :edges], plain.edge_index)
        assert bool((batch.edge_index[:, edges:] >= nodes).all())
        for key in ("x", "pos", "z", "batch"):
            assert torch.equal(batch[key][:nodes], plain[key])
        for key in ("y", "idx"):
            assert torch.equal(batch[key][: len(pack)], plain[key])
        assert torch.equal(batch.edge_attr[:edges], plain.edge_attr)
        assert torch.equal(batch.ptr[: len(pack) + 1], plain.ptr)
        assert batch.name[: len(pack)] == plain.name
        assert torch.equal(batch.node_mask, torch.arange(num_nodes) < nodes)
        assert torch.equal(batch.edge_mask, torch.arange(num_edges) < edges)
        assert torch.equal(batch.graph_mask, torch.arange(num_graphs) < len(pack))


needs_qm9 = pytest.mark.skipif(
    importlib.util.find_spec("qm9pack") is None,
    reason="needs qm9pack, the source of QM9 (pip install qm9pack)",
)


@needs_qm9
def test_real_molecules_equal_pygs_batches(tmp_path):
    from torch_geometric.datasets import QM9

    from torchkiln.datasets import write_qm9_root

    dataset = QM9(str(write_qm9_root(tmp_path, limit=400, progress=False)))
    store = GraphStore.from_dataset(dataset)
    order = np.random.default_rng(0).permutation(len(dataset))
    check_against_pyg(dataset, store, 600, 1200, 45, np.split(order, range(40, len(order), 40)))


@needs_qm9
@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_all_of_qm9_equals_pygs_batches(tmp_path):
    from torch_geometric.datasets import QM9

    from torchkiln.datasets import write_qm9_root
    from torchkiln.packing import pack

    dataset = QM9(str(write_qm9_root(tmp_path, progress=False)))
    store = GraphStore.from_dataset(dataset)
    slots = {"nodes": 2000, "edges": 4160, "graphs": 130}
    plan = pack(store.sizes, slots, seed=0)
    assert sorted(plan.indices.tolist()) == list(range(130_831))
    check_against_pyg(dataset, store, 2000, 4160, 130, plan)


def test_a_combined_batch_needs_a_pack(store):
    with pytest.raises(OptionsError, match="at least one pack"):
        collate_combined(store, [], SPEC)
