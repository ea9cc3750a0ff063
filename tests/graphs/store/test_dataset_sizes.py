import numpy as np
import pytest
import torch
from torch_geometric.data import Data, HeteroData, InMemoryDataset

from torchkiln.graphs._errors import GraphError
from torchkiln.graphs.store._dataset_sizes import dataset_sizes


class Memory(InMemoryDataset):
    reads = 0

    def __init__(self, graphs, transform=None):
        super().__init__(None, transform)
        self.data, self.slices = self.collate(graphs)

    def _download(self):
        pass

    def _process(self):
        pass

    def __getitem__(self, index):
        Memory.reads += isinstance(index, int)
        return super().__getitem__(index)


def make_graph(num_nodes, num_edges):
    return Data(x=torch.ones(num_nodes, 1), edge_index=torch.zeros(2, num_edges).long())


GRAPHS = [make_graph(3, 4), make_graph(5, 0), make_graph(1, 2), make_graph(7, 9)]


def test_sizes_are_read_graph_by_graph():
    sizes = dataset_sizes(GRAPHS)
    assert sizes.nodes[None].tolist() == [3, 5, 1, 7]
    assert sizes.edges[None].tolist() == [4, 0, 2, 9]


def test_datasets_in_memory_are_not_loaded_and_sub_sets_are_honoured():
    dataset = Memory(GRAPHS)
    Memory.reads = 0
    assert dataset_sizes(dataset).total_nodes.tolist() == [3, 5, 1, 7]
    assert dataset_sizes(dataset[[3, 0]]).total_edges.tolist() == [9, 4]
    assert Memory.reads == 0


def test_a_transform_counts():
    def without_edges(graph):
        graph.edge_index = graph.edge_index[:, :0]
        return graph

    assert dataset_sizes(Memory(GRAPHS, without_edges)).total_edges.tolist() == [0, 0, 0, 0]


def test_explicit_node_counts_are_read():
    graphs = [Data(edge_index=torch.tensor([[0], [1]]), num_nodes=n) for n in (4, 6)]
    assert dataset_sizes(Memory(graphs)).total_nodes.tolist() == [4, 6]


def test_types_are_counted_apart_and_missing_ones_are_empty():
    first, second = HeteroData(), HeteroData()
    first["a"].x, second["a"].x, second["b"].x = (
        torch.ones(2, 1),
        torch.ones(3, 1),
        torch.ones(1, 1),
    )
    second["a", "to", "b"].edge_index = torch.zeros(2, 5).long()
    sizes = dataset_sizes([first, second])
    assert {kind: counts.tolist() for kind, counts in sizes.nodes.items()} == {
        "a": [2, 3],
        "b": [0, 1],
    }
    assert np.array_equal(sizes.total_edges, [0, 5])


def test_what_is_not_a_graph_is_named():
    with pytest.raises(GraphError, match="entry 1 of the dataset is a Tensor"):
        dataset_sizes([make_graph(1, 1), torch.ones(1)])
    with pytest.raises(GraphError, match="empty"):
        dataset_sizes([])
