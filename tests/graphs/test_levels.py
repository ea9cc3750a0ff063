"""One rule says what an attribute describes: lists of graphs and stores make the same batch."""

from __future__ import annotations

import pytest
import torch
from _stored_graphs import assert_same_graph
from hypothesis import given, settings
from hypothesis import strategies as st
from torch_geometric.data import Data, HeteroData

from torchkiln.core import OptionsError
from torchkiln.graphs import BatchSpec, FixedSizeNeighborLoader, GraphStore, collate, pad_batch
from torchkiln.graphs._errors import GraphError
from torchkiln.graphs._levels import Level, classify
from torchkiln.graphs.loaders._subgraphs import find_data_levels

NAMES = ("x", "z", "pos", "w", "y", "e_id", "n_id", "edge_attr", "edge_weight", "node_id", "mask")
EDGE = ("a", "to", "b")


def ring(num_nodes, **more):
    nodes = torch.arange(num_nodes)
    return Data(edge_index=torch.stack([nodes, (nodes + 1) % num_nodes]), **more)


def test_edge_ids_of_rings_follow_edges_on_both_ways():
    graphs = [ring(n, x=torch.rand(n, 1), e_id=torch.arange(n)) for n in (3, 4)]
    spec = BatchSpec(20, 12, 4)
    padded = pad_batch(graphs, spec)
    collated = collate(GraphStore.from_dataset(graphs, progress=False), [0, 1], spec)
    assert padded.e_id.shape == (12,)
    assert_same_graph(collated, padded)


@st.composite
def flat_graphs(draw):
    """Draw graphs whose attributes are as long as they have nodes, edges, both, or neither."""
    sizes = draw(
        st.lists(st.tuples(st.integers(1, 3), st.integers(0, 3)), min_size=1, max_size=4).map(
            lambda sizes: (
                [(n, n) for n, _ in sizes] if draw(st.booleans()) else sizes  # as in rings
            )
        )
    )
    names = draw(st.lists(st.sampled_from(NAMES), unique=True, max_size=5))
    schema = {
        name: (draw(st.sampled_from(["node", "edge", "one", "three", "scalar"])), draw(_WIDTHS))
        for name in names
    }
    graphs = []
    for index, (num_nodes, num_edges) in enumerate(sizes):
        graph = Data(edge_index=torch.randint(num_nodes, (2, num_edges)), num_nodes=num_nodes)
        for name, (kind, width) in schema.items():
            graph[name] = _value(kind, width, num_nodes, num_edges, index)
        graphs.append(graph)
    return graphs


_WIDTHS = st.sampled_from([(), (1,), (2,)])


def _value(kind, width, num_nodes, num_edges, index):
    length = {"node": num_nodes, "edge": num_edges, "one": 1, "three": 3}.get(kind)
    shape = width if length is None else (length, *width)
    return torch.arange(torch.Size(shape).numel(), dtype=torch.float32).reshape(shape) + 100 * index


def batch_or_refusal(make):
    try:
        return make()
    except GraphError as error:
        return str(error)


def assert_same_outcome(graphs, spec):
    everything = list(range(len(graphs)))
    padded = batch_or_refusal(lambda: pad_batch(graphs, spec))
    collated = batch_or_refusal(
        lambda: collate(GraphStore.from_dataset(graphs, progress=False), everything, spec)
    )
    if isinstance(padded, str) or isinstance(collated, str):
        assert padded == collated
    else:
        assert_same_graph(collated, padded)


@settings(max_examples=300, deadline=None)
@given(graphs=flat_graphs())
def test_lists_and_stores_make_the_same_batch_of_random_schemas(graphs):
    assert_same_outcome(graphs, BatchSpec(20, 17, 6))


@st.composite
def typed_graphs(draw):
    sizes = draw(
        st.lists(
            st.tuples(st.integers(1, 3), st.integers(1, 3), st.integers(0, 3)),
            min_size=1,
            max_size=4,
        )
    )
    names = draw(st.lists(st.sampled_from(NAMES[3:]), unique=True, max_size=4))
    schema = {
        (place, name): (draw(st.sampled_from(["node", "edge", "one", "three"])), draw(_WIDTHS))
        for place in ("a", "b", EDGE, None)
        for name in names
    }
    graphs = []
    for index, (a, b, edges) in enumerate(sizes):
        graph = HeteroData()
        graph["a"].num_nodes, graph["b"].num_nodes = a, b
        graph[EDGE].edge_index = torch.stack(
            [torch.randint(a, (edges,)), torch.randint(b, (edges,))]
        )
        for (place, name), (kind, width) in schema.items():
            store = graph.stores[0] if place is None else graph[place]
            store[name] = _value(kind, width, b if place == "b" else a, edges, index)
        graphs.append(graph)
    return graphs


@settings(max_examples=100, deadline=None)
@given(graphs=typed_graphs())
def test_lists_and_stores_make_the_same_batch_of_random_typed_schemas(graphs):
    assert_same_outcome(graphs, BatchSpec({"a": 20, "b": 21}, {EDGE: 17}, 6))


def test_a_single_entry_that_could_be_anything_is_refused_by_a_store_too():
    graphs = [Data(x=torch.rand(1, 2), y=torch.tensor([float(i)])) for i in range(3)]
    for graph in graphs:
        graph.edge_index = torch.zeros(2, 1, dtype=torch.int64)
    with pytest.raises(GraphError, match="levels="):
        GraphStore.from_dataset(graphs, progress=False)


def test_levels_settle_a_doubt_for_lists_and_stores(tmp_path):
    graphs = [ring(1, x=torch.rand(1, 2), y=torch.tensor([float(i)])) for i in range(3)]
    spec, levels = BatchSpec(9, 8, 5), {"y": "graph"}
    padded = pad_batch(graphs, spec, levels=levels)
    assert padded.y.shape == (5,)
    for store in (
        GraphStore.from_dataset(graphs, levels=levels, progress=False),
        GraphStore.build(graphs, tmp_path / "store", levels=levels, progress=False),
    ):
        assert_same_graph(collate(store, [0, 1, 2], spec), padded)


def test_levels_that_lengths_contradict_are_refused():
    graphs = [ring(n, x=torch.rand(n, 1), w=torch.rand(2)) for n in (3, 4)]
    for make in (
        lambda: pad_batch(graphs, BatchSpec(20, 12, 4), levels={"w": "node"}),
        lambda: GraphStore.from_dataset(graphs, levels={"w": "node"}, progress=False),
    ):
        with pytest.raises(GraphError, match="one entry for each node"):
            make()


@pytest.mark.parametrize(
    ("levels", "message"),
    [
        ({"edge_index": "graph"}, r"levels\['edge_index'\] cannot be changed"),
        ({"edge_index": "node"}, r"levels\['edge_index'\] cannot be changed"),
        ({"typo": "node"}, r"levels\['typo'\] is that of no attribute.*edge_index, w, x"),
        ({"w": "nodes"}, r"levels\['w'\] is 'nodes'"),
    ],
)
def test_levels_that_nothing_can_have_are_refused_before_graphs_are_read(levels, message):
    graphs = [ring(3, x=torch.rand(3, 1), w=torch.rand(2)) for _ in range(2)]

    def first_of_many():
        yield graphs[0]
        raise AssertionError("a second graph was read")

    for make in (
        lambda: pad_batch(graphs, BatchSpec(20, 12, 4), levels=levels),
        lambda: GraphStore.from_dataset(first_of_many(), levels=levels, progress=False),
    ):
        with pytest.raises(OptionsError, match=message):
            make()


def test_what_levels_say_of_edges_of_a_type_is_refused_too():
    graph = HeteroData()
    graph["a"].x = torch.rand(3, 2)
    graph["a", "to", "a"].edge_index = torch.tensor([[0, 1], [1, 2]])
    with pytest.raises(OptionsError, match="cannot be changed"):
        GraphStore.from_dataset([graph], levels={"edge_index": "graph"}, progress=False)


def test_levels_may_name_what_is_left_out_and_what_edges_are():
    graphs = [ring(3, x=torch.rand(3, 1), w=torch.rand(2))]
    levels = {"w": "graph", "edge_index": "edge"}
    store = GraphStore.from_dataset(graphs, levels=levels, exclude_keys=["w"], progress=False)
    padded = pad_batch(graphs, BatchSpec(20, 12, 4), levels=levels, exclude_keys=["w"])
    assert_same_graph(collate(store, [0], BatchSpec(20, 12, 4)), padded)


def test_a_loader_of_parts_names_the_transform_that_changed_a_length():
    def halve(part):
        part.y = part.y[: len(part.y) // 2]
        return part

    whole = ring(20, x=torch.rand(20, 1), y=torch.arange(20))
    loader = FixedSizeNeighborLoader(whole, [2, 2], batch_size=4, transform=halve)
    message = r"transform changed the length of 'y', which describes nodes.*exclude_keys=\['y'\]"
    with pytest.raises(GraphError, match=message):
        next(iter(loader))


def test_a_level_that_is_none_is_refused():
    with pytest.raises(OptionsError, match="'nodes'"):
        classify("w", [3], nodes=[3], edges=[2], given="nodes")


def test_the_name_decides_where_nodes_and_edges_are_equally_many():
    found = {name: classify(name, [3, 4], nodes=[3, 4], edges=[3, 4]) for name in ("e_id", "w")}
    assert found == {"e_id": Level.EDGE, "w": Level.NODE}


def test_parts_of_a_large_graph_follow_the_same_rule():
    whole = ring(5, x=torch.rand(5, 1), e_id=torch.arange(5), w=torch.rand(5), y=torch.rand(2))
    levels = find_data_levels(whole, {})
    assert levels["e_id"] == "edge"
    assert (levels["w"], levels["y"], levels["edge_index"]) == ("node", "graph", "edge")
