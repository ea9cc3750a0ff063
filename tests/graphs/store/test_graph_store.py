"""A store gives back what was put in."""

from __future__ import annotations

import multiprocessing
import pickle

import numpy as np
import pytest
import torch
from _stored_graphs import assert_same_graph, rich_graphs, two_type_graph, two_type_graphs
from torch_geometric.data import Batch, Data, InMemoryDataset, TemporalData

from torchkiln.core import StoreError
from torchkiln.data import DatasetError
from torchkiln.graphs.store._store import GraphStore


class InMemory(InMemoryDataset):
    """A dataset that PyG keeps flat."""

    def __init__(self, graphs, transform=None):
        super().__init__(None, transform)
        self.data, self.slices = self.collate(graphs)


def make(graphs, **kwargs):
    return GraphStore.from_dataset(graphs, progress=False, **kwargs)


@pytest.fixture(params=["memory", "streamed", "saved"])
def stored(request, tmp_path):
    """Makes stores in every way that there is."""

    def make_one(graphs):
        if request.param == "memory":
            return make(graphs)
        if request.param == "streamed":
            return GraphStore.build(iter(graphs), tmp_path / "store", progress=False)
        return make(graphs).save(tmp_path / "store")

    return make_one


def test_graphs_come_back_bit_for_bit(stored):
    graphs = rich_graphs()
    store = stored(graphs)
    assert len(store) == len(graphs)
    for got, expected in zip(store, graphs, strict=True):
        assert_same_graph(got, expected)


def test_heterogeneous_graphs_come_back_bit_for_bit(stored):
    graphs = two_type_graphs()
    for got, expected in zip(stored(graphs), graphs, strict=True):
        assert_same_graph(got, expected)


def test_an_explicit_number_of_nodes_comes_back(stored):
    graphs = [
        Data(edge_index=torch.zeros(2, i, dtype=torch.int64), num_nodes=i + 3) for i in (1, 2)
    ]
    store = stored(graphs)
    assert [graph.num_nodes for graph in store] == [4, 5]
    assert_same_graph(store[1], graphs[1])


def test_sizes_are_known_without_loading(stored):
    graphs = rich_graphs()
    sizes = stored(graphs).sizes
    assert sizes["nodes"].tolist() == [graph.num_nodes for graph in graphs]
    assert sizes["edges"].tolist() == [graph.num_edges for graph in graphs]


def test_sizes_of_types():
    graphs = two_type_graphs()
    sizes = make(graphs).sizes
    assert list(sizes) == [
        "nodes:paper",
        "nodes:author",
        "edges:author,writes,paper",
        "edges:paper,cites,paper",
    ]
    assert sizes["nodes:author"].tolist() == [g["author"].num_nodes for g in graphs]


@pytest.mark.parametrize(
    ("index", "expected"),
    [
        (slice(2, 9, 3), [2, 5, 8]),
        ([4, 0, -1], [4, 0, 11]),
        (np.array([3, 3]), [3, 3]),
        (torch.tensor([1, 2]), [1, 2]),
        (np.arange(12) > 9, [10, 11]),
    ],
)
def test_views_select(index, expected):
    graphs = rich_graphs()
    view = make(graphs)[index]
    assert len(view) == len(expected)
    assert [graph.tag.item() for graph in view] == expected
    assert view.sizes["nodes"].tolist() == [graphs[i].num_nodes for i in expected]
    assert view[-1:][0].tag.item() == expected[-1]


@pytest.mark.parametrize("index", [12, -13, [0, 12]])
def test_a_graph_that_is_not_there(index):
    with pytest.raises(IndexError, match="of a store with 12 graphs"):
        make(rich_graphs())[index]


def test_changing_a_graph_does_not_change_the_store():
    store = make(rich_graphs())
    store[3].x.zero_()
    assert store[3].x.abs().sum() > 0


def test_a_view_is_saved_alone(tmp_path):
    graphs = rich_graphs()
    saved = make(graphs)[[7, 2, 9]].save(tmp_path / "some")
    assert len(saved) == 3
    for got, index in zip(saved, (7, 2, 9), strict=True):
        assert_same_graph(got, graphs[index])


def test_a_flat_dataset_is_taken_without_a_copy():
    dataset = InMemory(rich_graphs())
    store = make(dataset)
    assert np.shares_memory(store.columns.arrays["x"], dataset._data.x.numpy())
    for index in range(len(dataset)):
        assert_same_graph(store[index], dataset[index])


@pytest.mark.parametrize("graphs", [rich_graphs(), two_type_graphs()])
def test_a_subset_of_a_flat_dataset(graphs):
    subset = InMemory(graphs)[[5, 1, 6]]
    store = make(subset)
    assert len(store) == 3
    for index in range(3):
        assert_same_graph(store[index], subset[index])


def test_a_transform_is_applied():
    def double(graph):
        graph.x = graph.x * 2
        return graph

    dataset = InMemory(rich_graphs(), transform=double)
    assert_same_graph(make(dataset)[4], dataset[4])


def test_a_flat_dataset_with_explicit_numbers_of_nodes():
    graphs = [
        Data(edge_index=torch.zeros(2, i, dtype=torch.int64), num_nodes=i + 3) for i in range(4)
    ]
    dataset = InMemory(graphs)
    store = make(dataset)
    assert store.sizes["nodes"].tolist() == [3, 4, 5, 6]
    assert_same_graph(store[2], dataset[2])


def test_a_dataset_of_one_graph():
    dataset = InMemory(rich_graphs(1))
    assert_same_graph(make(dataset)[0], dataset[0])


def test_points_without_edges():
    store = make([Data(pos=torch.rand(i + 1, 3)) for i in range(3)])
    assert store.sizes["nodes"].tolist() == [1, 2, 3]
    assert store.sizes["edges"].tolist() == [0, 0, 0]


def test_attributes_are_told_apart_over_all_graphs():
    # As long as graph 0 has nodes, but the same in all graphs: it belongs to the graph.
    graphs = [Data(x=torch.rand(n, 1), y=torch.rand(3)) for n in (3, 4)]
    (storage,) = make(graphs).schema.storages
    assert {a.key: a.axis for a in storage.attributes} == {"x": "nodes", "y": None}


def test_as_many_nodes_as_edges_are_told_apart_by_name():
    graphs = [
        Data(x=torch.rand(n, 1), edge_index=torch.zeros(2, n, dtype=int), edge_attr=torch.rand(n))
        for n in (3, 4)
    ]
    (storage,) = make(graphs).schema.storages
    axes = {a.key: a.axis for a in storage.attributes}
    assert axes == {"x": "nodes", "edge_index": "edges", "edge_attr": "edges"}


def plain(**more):
    return Data(x=torch.rand(3, 2), edge_index=torch.tensor([[0, 1], [1, 2]]), **more)


def nested(depth):
    value = []
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("graphs", "message"),
    [
        ([], "the dataset is empty"),
        ([plain(), plain(a=1)], r"\['a'\] are in one of them only.*exclude_keys"),
        ([plain(a=1), plain(a=1.5)], "is float in graph 1 and int in graph 0"),
        ([plain(), Data(x=torch.rand(3, 5), edge_index=torch.zeros(2, 0, dtype=int))], r"\[3, 5\]"),
        ([plain(a=torch.rand(2)), plain(a=torch.rand(2).double())], "float64"),
        ([plain(face=torch.zeros(3, 1, dtype=int))], "'face'.*exclude_keys"),
        ([plain(bond_index=torch.zeros(2, 1, dtype=int))], "'bond_index'.*rename it"),
        ([plain(batch=torch.zeros(3, dtype=int))], "'batch'"),
        ([plain(a={"b": 1})], "'a' of type dict"),
        ([plain(a=(1, 2))], "'a' of type tuple"),
        ([plain(a=nested(10**4))], "'a' of type list"),
        ([plain(a=np.zeros(3))], "'a' of type ndarray"),
        ([plain(a=torch.eye(3).to_sparse())], "dense tensor"),
        ([plain(a=2**70)], "does not fit into int64"),
        ([Data(edge_index=torch.tensor([[0], [1]]))], "set num_nodes"),
        ([Data(x=torch.rand(2, 1), edge_index=torch.tensor([[0], [2]]))], "node 2 but only 2"),
        ([Data(x=torch.rand(2, 1), edge_index=torch.tensor([[-1], [1]]))], "edge to node -1"),
        ([Data(x=torch.rand(2, 1), edge_index=torch.rand(2, 4))], "'edge_index'"),
        ([TemporalData()], "plain Data and HeteroData, got TemporalData"),
        ([Batch.from_data_list([plain()])], "got DataBatch"),
        ([plain(), two_type_graph(0, 2, 2, 2)], "graph 1 is a HeteroData, graph 0 a Data"),
        ([plain(ptr=torch.zeros(2))], "'ptr'"),
    ],
)  # fmt: skip
def test_what_cannot_be_stored_is_refused_with_a_remedy(graphs, message):
    with pytest.raises(StoreError, match=message):
        make(graphs)


def test_a_type_that_is_missing_in_a_graph():
    first, second = two_type_graphs(2)
    del second["paper", "cites", "paper"]
    with pytest.raises(StoreError, match="empty where it has none"):
        make([first, second])


def test_excluded_attributes_are_not_looked_at():
    graph = plain(face=torch.zeros(3, 1, dtype=int), a={"b": 1})
    (kept,) = make([graph], exclude_keys=["face", "a"])[0].stores
    assert list(kept) == ["x", "edge_index"]


def test_excluding_one_name_as_a_string_is_an_error():
    with pytest.raises(StoreError, match=r"pass \['face'\]"):
        make([plain()], exclude_keys="face")


def test_pickling_a_saved_store_sends_its_path(tmp_path):
    graphs = rich_graphs()
    store = make(graphs).save(tmp_path / "store")
    payload = pickle.dumps(store[[4, 2]])
    assert len(payload) < 2000
    assert_same_graph(pickle.loads(payload)[0], graphs[4])


def test_pickling_a_store_in_memory_sends_what_is_selected():
    graphs = rich_graphs()
    assert_same_graph(pickle.loads(pickle.dumps(make(graphs)[[4, 2]]))[1], graphs[2])


def test_a_store_that_was_built_again_does_not_fit_old_views(tmp_path):
    payload = pickle.dumps(make(rich_graphs()).save(tmp_path / "store"))
    make(rich_graphs(5)).save(tmp_path / "store", overwrite=True)
    with pytest.raises(StoreError, match="was built again"):
        pickle.loads(payload)


def total(store, queue):
    queue.put(float(sum(graph.x.sum() for graph in store)))


def test_a_forked_process_reads_the_same_store(tmp_path):
    store = make(rich_graphs()).save(tmp_path / "store")
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    process = context.Process(target=total, args=(store, queue))
    process.start()
    assert queue.get(timeout=60) == float(sum(graph.x.sum() for graph in store))
    process.join()
    queue.close()
    queue.join_thread()


def test_a_store_prints_itself():
    text = str(make(rich_graphs()))
    assert "GraphStore(12 graphs)" in text
    assert "nodes: 45 in all, 3.8 a graph (2 to 6)" in text
    assert "edge_attr: bfloat16 [-1, 3] follows edges" in text
    assert "name: text" in text


@pytest.mark.parametrize(
    ("mistake", "error"), [(StopIteration, DatasetError), (IndexError, IndexError)]
)
def test_a_dataset_that_fails_in_the_middle_is_not_stored_in_part(mistake, error):
    class Failing:
        def __len__(self) -> int:
            return len(rich_graphs())

        def __getitem__(self, index: int) -> Data:
            if index == 4:
                raise mistake
            return rich_graphs()[index]

    with pytest.raises(error):
        GraphStore.from_dataset(Failing(), progress=False)
