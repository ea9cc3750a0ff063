"""The static operations by their original names."""

from __future__ import annotations

import importlib

import pytest
import torch
import torch_geometric.nn as pyg
from torch_geometric.nn import global_mean_pool

import poptorch
from poptorch_geometric import ops, override

X = torch.randn(7, 4)
EDGES = torch.tensor([[0, 1, 2, 3, 3, 5, 2], [1, 0, 1, 3, 2, 6, 2]])
TYPES = torch.tensor([2, 0, 1, 1, 0, 2, 2])
BATCH = torch.tensor([0, 0, 0, 1, 1, 1, 1])

LAYERS = {
    "ClusterGCNConv": (lambda m: m.ClusterGCNConv(4, 3, diag_lambda=0.3), (X, EDGES)),
    "MFConv": (lambda m: m.MFConv(4, 3, max_degree=2), (X, EDGES)),
    "HeteroLinear": (lambda m: m.HeteroLinear(4, 3, 3), (X, TYPES)),
    "InstanceNorm": (
        lambda m: m.InstanceNorm(4, affine=True, track_running_stats=True),
        (X, BATCH, 2),
    ),
}


def test_every_name_is_there():
    assert all(hasattr(ops, name) for name in ops.__all__)
    assert len(ops.__all__) == 10


def test_searches_are_in_modules_of_their_names():
    import poptorch_geometric.ops.knn_graph as imported_by_path  # what the original gives here
    from poptorch_geometric.ops.knn import knn
    from poptorch_geometric.ops.knn_graph import knn_graph
    from poptorch_geometric.ops.knn_interpolate import knn_interpolate
    from poptorch_geometric.ops.radius import radius, radius_graph

    for function in (knn, knn_graph, knn_interpolate, radius, radius_graph):
        assert getattr(ops, function.__name__) is function
    assert imported_by_path is knn_graph
    for name in ("knn", "knn_graph", "knn_interpolate", "radius"):
        module = importlib.import_module(f"poptorch_geometric.ops.{name}")
        assert getattr(module, name) is getattr(ops, name)


def test_equidistant_neighbours_are_chosen_as_pyg_chooses_them():
    squares = torch.tensor([[-1, -1], [-1, 1], [1, 1], [1, -1]] * 2)
    index = ops.knn(squares, torch.tensor([[1, 0], [-1, 0]]), 2)
    assert index.T.tolist() == [[0, 2], [0, 3], [1, 0], [1, 1]]


@pytest.mark.parametrize("name", LAYERS)
def test_static_layers_equal_pyg(name):
    build, args = LAYERS[name]
    original, static = build(pyg), build(ops)
    assert isinstance(static, type(original))
    static.load_state_dict(original.state_dict())
    for _ in range(2):
        expected, got = original(*args), static(*args)
        torch.testing.assert_close(got, expected, atol=1e-6, rtol=1e-5)
    expected.square().sum().backward()
    got.square().sum().backward()
    for first, second in zip(original.parameters(), static.parameters(), strict=True):
        if first.grad is not None:
            torch.testing.assert_close(second.grad, first.grad, atol=1e-5, rtol=1e-5)
    for first, second in zip(original.buffers(), static.buffers(), strict=True):
        torch.testing.assert_close(first, second)


def test_aggregation_does_not_read_indices():
    ops.Aggregation().assert_sorted_index(torch.tensor([2, 1]))
    with pytest.raises(ValueError, match="not sorted"):
        pyg.Aggregation().assert_sorted_index(torch.tensor([2, 1]))


def test_searches_mark_what_is_missing():
    index = ops.knn(X, X, 4, BATCH, BATCH)
    assert index.shape == (2, 28)
    assert index.dtype == torch.int64
    # The first example has three points, so each of them misses its fourth neighbour.
    assert (index == -1).all(dim=0).view(7, 4).sum(dim=1).tolist() == [1, 1, 1, 0, 0, 0, 0]
    assert ops.knn_graph(X, 2, BATCH, loop=True).shape == (2, 14)
    assert ops.radius(X, X, 1.0, max_num_neighbors=3).shape == (2, 21)
    assert ops.radius_graph(X, 1.0, loop=True).shape == (2, 49)


def test_substitutions_are_active_inside_only():
    original = pyg.MFConv.forward
    with override.substitutions(torch.nn.Identity()):
        assert pyg.MFConv.forward is not original
    assert pyg.MFConv.forward is original


POINTS = torch.tensor([[0.0, 0.0], [1.0, 0.0], [3.0, 0.0], [10.0, 0.0]])
EXAMPLES = torch.tensor([0, 0, 0, 1])


@pytest.mark.parametrize(
    ("search", "size"), [(ops.knn_graph, 2), (ops.radius_graph, 2.5)], ids=["knn", "radius"]
)
def test_searches_without_loops_return_edges_only_outside_programs(search, size):
    edges = search(POINTS, size, EXAMPLES)
    neighbours = {"knn_graph": [{1, 2}, {0, 2}, {0, 1}, set()]}.get(
        search.__name__, [{1}, {0, 2}, {1}, set()]
    )
    assert {tuple(edge) for edge in edges.T.tolist()} == {
        (source, target) for target, sources in enumerate(neighbours) for source in sources
    }
    assert edges.shape[1] == sum(map(len, neighbours))
    with pytest.raises(AssertionError, match="flow"):
        search(POINTS, size, flow="sideways")


@pytest.mark.parametrize(
    ("search", "size"), [(ops.knn_graph, 2), (ops.radius_graph, 2.5)], ids=["knn", "radius"]
)
def test_searches_without_loops_are_static_in_programs(search, size):
    class Search(torch.nn.Module):
        def forward(self, points, examples):
            return search(points, size, examples)

    edges = search(POINTS, size, EXAMPLES)
    found = poptorch.inferenceModel(Search())(POINTS, EXAMPLES)
    assert found.shape[1] > edges.shape[1]
    assert torch.equal(found[:, found[0] >= 0], edges)


def test_a_size_computed_from_data_is_a_value_error_as_in_the_original():
    class Pooled(torch.nn.Module):
        def forward(self, x, batch):
            return global_mean_pool(x, batch)

    model = poptorch.inferenceModel(Pooled())
    with pytest.raises(ValueError, match="Dynamic shapes disabled") as caught:
        model(torch.ones(4, 2), torch.zeros(4, dtype=torch.long))
    assert isinstance(caught.value, poptorch.Error)
