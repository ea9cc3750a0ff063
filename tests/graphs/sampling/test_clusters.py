import pytest
import torch
from _large_graphs import library, load_cora, random_graph
from torch_geometric.utils import subgraph

from torchkiln.core import OptionsError
from torchkiln.graphs.sampling._clusters import Clusters


@pytest.fixture
def graph():
    return random_graph()


@pytest.fixture
def clusters(graph):
    return Clusters.partition(graph, 8, seed=1)


def test_every_node_is_in_exactly_one_cluster(tmp_path):
    cora = load_cora(tmp_path)
    clusters = Clusters.partition(cora, 16)
    assert len(clusters) == clusters.num_parts == 16
    nodes = torch.cat([clusters[i].n_id for i in range(16)])
    assert torch.equal(nodes.sort().values, torch.arange(cora.num_nodes))
    inside = sum(clusters[i].num_edges for i in range(16))
    assert inside + clusters.num_cut_edges == cora.num_edges


@pytest.mark.parametrize("indices", [[0], [5, 2], [7, 0, 3, 1]])
def test_merged_clusters_are_the_induced_sub_graph(graph, clusters, indices):
    merged = clusters.merge(indices)
    expected = torch.cat([clusters[i].n_id for i in indices])
    assert torch.equal(merged.n_id, expected)
    assert torch.equal(merged.x, graph.x[expected])
    assert torch.equal(merged.y, graph.y[expected])
    edges, attributes = subgraph(expected, graph.edge_index, graph.edge_attr)
    assert merged.num_edges == edges.shape[1]
    order, expected_order = merged.edge_attr.argsort(), attributes.argsort()
    assert torch.equal(merged.edge_attr[order], attributes[expected_order])
    assert torch.equal(merged.n_id[merged.edge_index][:, order], edges[:, expected_order])


def test_all_clusters_together_are_the_graph(graph, clusters):
    merged = clusters.merge(range(8))
    assert merged.num_edges == graph.num_edges
    assert clusters.measure(range(8)) == (graph.num_nodes, graph.num_edges)


def test_the_data_is_not_changed(graph, clusters):
    keys = set(graph.keys())
    clusters.merge([0, 1])
    assert set(graph.keys()) == keys
    assert clusters.data is graph


def test_own_assignment_and_negative_index(graph):
    clusters = Clusters(graph, torch.arange(200) % 5)
    assert torch.equal(clusters[-1].n_id, torch.arange(4, 200, 5))
    assert repr(clusters).startswith("Clusters(5 of 40 to 40 nodes; ")
    with pytest.raises(IndexError, match=r"5 is outside 0\.\.4"):
        clusters[5]


@pytest.mark.parametrize(
    ("assignment", "message"),
    [
        (torch.zeros(3), r"each of 200 nodes, got shape \(3,\)"),
        (torch.full((200,), -1), "one cluster"),
        (torch.arange(200) % 2 * 2, "cluster 1 has no node"),
    ],
)
def test_refused_assignments(graph, assignment, message):
    with pytest.raises(OptionsError, match=message):
        Clusters(graph, assignment)


def test_heterogeneous_graphs_are_refused_with_the_remedy():
    data = library()
    with pytest.raises(OptionsError, match=r"to_homogeneous\(\)"):
        Clusters(data, torch.zeros(85))
