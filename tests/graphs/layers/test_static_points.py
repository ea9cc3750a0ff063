"""Neighbour searches of fixed size, against brute force in NumPy."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch_geometric.nn as pyg
from torch import Tensor, nn

from torchkiln.core import Options, OptionsError
from torchkiln.graphs.layers import (
    drop_missing,
    knn,
    knn_graph,
    knn_interpolate,
    nearest,
    provide_point_layers,
    radius,
    radius_graph,
    route_missing,
    voxel_grid,
)
from torchkiln.graphs.layers._spline import spline_basis, spline_weighting
from torchkiln.runtime import inference_model

BATCH_X = torch.tensor([0, 0, 0, 0, 1, 1, 2, 2, 2])
BATCH_Y = torch.tensor([0, 0, 1, 1, 1, 2])


@pytest.fixture
def points() -> tuple[Tensor, Tensor]:
    return torch.randn(9, 3), torch.randn(6, 3)


def brute_force(x, y, batch_x, batch_y, *, k=None, r=None, loop=True) -> set[tuple[int, int]]:
    """Return (y, x) pairs, one example and one point at a time."""
    pairs = set()
    for i in range(len(y)):
        own = [j for j in range(len(x)) if batch_x[j] == batch_y[i] and (loop or j != i)]
        distance = {j: float(np.linalg.norm(x[j].numpy() - y[i].numpy())) for j in own}
        nearest_first = sorted(own, key=distance.__getitem__)
        if r is not None:
            nearest_first = [j for j in nearest_first if distance[j] <= r]
        pairs |= {(i, j) for j in nearest_first[:k]}
    return pairs


def as_pairs(index: Tensor) -> set[tuple[int, int]]:
    return {(int(a), int(b)) for a, b in drop_missing(index).T}


def test_knn_finds_the_nearest_of_the_same_example(points):
    x, y = points
    index = knn(x, y, 3, BATCH_X, BATCH_Y)
    assert index.shape == (2, 18)
    assert index.dtype == torch.int64
    assert as_pairs(index) == brute_force(x, y, BATCH_X, BATCH_Y, k=3)
    # Example 1 has two points: its third neighbour is missing in both rows.
    assert index[:, 8].tolist() == [-1, -1]


def test_knn_orders_by_distance(points):
    x, y = points
    index = knn(x, y, 9)[1].view(6, 9)
    distance = torch.cdist(y, x).gather(1, index)
    assert (distance.diff(dim=1) >= 0).all()


def test_knn_with_cosine_distance():
    x = torch.tensor([[10.0, 0.0], [0.1, 0.1]])
    assert knn(x, torch.tensor([[1.0, 0.9]]), 1, cosine=True)[1].tolist() == [1]
    assert knn(x, torch.tensor([[9.0, 8.1]]), 1)[1].tolist() == [0]


def test_one_dimensional_and_integer_points():
    assert knn(torch.tensor([0, 5, 9]), torch.tensor([6]), 2)[1].tolist() == [1, 2]


@pytest.mark.parametrize("k", [0, 10])
def test_impossible_k_is_refused(points, k):
    with pytest.raises(OptionsError, match=f"cannot find {k} neighbours among 9 points"):
        knn(*points, k)


def test_points_of_different_width_are_refused(points):
    with pytest.raises(OptionsError, match=r"got \[9, 3\] and \[6, 2\]"):
        knn(points[0], points[1][:, :2], 1)


@pytest.mark.parametrize("loop", [True, False])
@pytest.mark.parametrize("flow", ["source_to_target", "target_to_source"])
def test_knn_graph_has_no_loops_unless_asked(points, loop, flow):
    x, _ = points
    index = knn_graph(x, 3, BATCH_X, loop=loop, flow=flow)
    assert index.shape == (2, 27)
    expected = brute_force(x, x, BATCH_X, BATCH_X, k=3, loop=loop)
    turned = index.flip(0) if flow == "source_to_target" else index
    assert as_pairs(turned) == expected


def test_unknown_flow_is_an_assertion_error(points):
    with pytest.raises(AssertionError, match="sideways"):
        knn_graph(points[0], 2, flow="sideways")


@pytest.mark.parametrize(("limit", "width"), [(32, 9), (2, 2), (None, 9)])
def test_radius_keeps_the_nearest(points, limit, width):
    x, y = points
    index = radius(x, y, 1.8, BATCH_X, BATCH_Y, max_num_neighbors=limit)
    assert index.shape == (2, 6 * width)
    assert as_pairs(index) == brute_force(x, y, BATCH_X, BATCH_Y, k=limit, r=1.8)


def test_radius_graph(points):
    x, _ = points
    expected = brute_force(x, x, BATCH_X, BATCH_X, k=32, r=1.8, loop=False)
    assert as_pairs(radius_graph(x, 1.8, BATCH_X).flip(0)) == expected
    with_loops = brute_force(x, x, BATCH_X, BATCH_X, k=32, r=1.8)
    assert as_pairs(radius_graph(x, 1.8, BATCH_X, loop=True).flip(0)) == with_loops


def test_nearest(points):
    x, y = points
    expected = {(i, j) for i, j in brute_force(y, x, BATCH_Y, BATCH_X, k=1)}
    assert set(enumerate(nearest(x, y, BATCH_X, BATCH_Y).tolist())) == expected


def test_interpolation_uses_the_points_there_are(points):
    x, y = points
    features = torch.randn(9, 2)
    out = knn_interpolate(features, x, y, BATCH_X, BATCH_Y, k=4)
    for i in range(6):
        own = [j for j in range(9) if BATCH_X[j] == BATCH_Y[i]]
        weight = 1 / (x[own] - y[i]).square().sum(-1)
        expected = (features[own] * weight[:, None]).sum(0) / weight.sum()
        torch.testing.assert_close(out[i], expected)


def test_interpolation_without_any_point_is_zero(points):
    x, y = points
    features = torch.full((9, 2), 1e30, requires_grad=True)
    out = knn_interpolate(features, x, y, BATCH_X, BATCH_Y + 7)
    assert out.eq(0).all()
    out.sum().backward()
    assert features.grad.eq(0).all()


def test_missing_entries_can_be_sent_to_a_node():
    index = torch.tensor([[0, -1], [3, -1]])
    assert route_missing(index, 9).tolist() == [[0, 9], [3, 9]]


def test_voxels_number_the_cells_of_a_grid():
    pos = torch.tensor([[0.0, 0.0], [0.9, 0.0], [1.1, 0.0], [0.0, 2.5], [0.0, 0.0]])
    cells = voxel_grid(pos, 1.0, torch.tensor([0, 0, 0, 0, 1]), start=0.0, end=[1.5, 2.9])
    # Two cells across, three down, six an example.
    assert cells.tolist() == [0, 0, 1, 4, 6]


@pytest.mark.parametrize("degree", [1, 2, 3])
def test_spline_bases_sum_to_one(degree):
    pseudo = torch.rand(50, 2)
    sizes, is_open = torch.tensor([5, 4]), torch.tensor([1, 0], dtype=torch.uint8)
    values, index = spline_basis(pseudo, sizes, is_open, degree)
    assert values.shape == index.shape == (50, (degree + 1) ** 2)
    torch.testing.assert_close(values.sum(dim=1), torch.ones(50))
    assert (values >= 0).all()
    assert index.min() >= 0
    assert index.max() < 20


def test_linear_spline_interpolates_its_control_points():
    weight = torch.tensor([3.0, 5.0, 4.0]).view(3, 1, 1)
    pseudo = torch.tensor([[0.0], [0.25], [0.5], [0.75]])
    basis = spline_basis(pseudo, torch.tensor([3]), torch.ones(1, dtype=torch.uint8), 1)
    out = spline_weighting(torch.ones(4, 1), weight, *basis)
    torch.testing.assert_close(out[:, 0], torch.tensor([3.0, 4.0, 5.0, 4.5]))


class Searching(nn.Module):
    """Uses names that were imported before any program existed."""

    def forward(self, pos: Tensor, batch: Tensor):
        return (
            pyg.knn(pos, pos, 3, batch, batch),
            pyg.knn_graph(pos, 2, batch),
            pyg.radius(pos, pos, 1.5, batch, batch),
            pyg.radius_graph(pos, 1.5, batch),
            pyg.nearest(pos, pos, batch, batch),
        )


def test_searches_of_pyg_are_static_in_programs(points):
    x, _ = points
    program = inference_model(Searching(), Options(backend="capture", show_progress=False))
    found = program(x, BATCH_X)
    expected = (
        knn(x, x, 3, BATCH_X, BATCH_X),
        knn_graph(x, 2, BATCH_X),
        radius(x, x, 1.5, BATCH_X, BATCH_X),
        radius_graph(x, 1.5, BATCH_X),
        nearest(x, x, BATCH_X, BATCH_X),
    )
    for got, wanted in zip(found, expected, strict=True):
        assert torch.equal(got, wanted)


def test_provided_searches_return_what_pyg_would(points):
    if not provide_point_layers():
        pytest.skip("pyg-lib is installed, so PyG searches by itself")
    x, y = points
    index = pyg.knn(x, y, 3, BATCH_X, BATCH_Y)
    assert index.min() >= 0
    assert as_pairs(index) == brute_force(x, y, BATCH_X, BATCH_Y, k=3)


def manual_edge_conv(conv: nn.Module, x: Tensor, pairs: set[tuple[int, int]]) -> Tensor:
    """Return EdgeConv's maximum over the given (centre, neighbour) pairs, node by node."""
    rows = []
    for i in range(len(x)):
        own = [torch.cat([x[i], x[j] - x[i]]) for a, j in sorted(pairs) if a == i]
        rows.append(conv.nn(torch.stack(own)).amax(dim=0))
    return torch.stack(rows)


def test_dynamic_edge_conv_masks_missing_neighbours(points):
    provide_point_layers()
    x, _ = points
    conv = pyg.DynamicEdgeConv(nn.Linear(6, 4), k=3)
    expected = manual_edge_conv(conv, x, brute_force(x, x, BATCH_X, BATCH_X, k=3))
    program = inference_model(conv, Options(backend="capture", show_progress=False))
    torch.testing.assert_close(program(x, BATCH_X), expected)
    torch.testing.assert_close(conv(x, BATCH_X), expected)


class GraphThenConv(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = pyg.EdgeConv(nn.Linear(6, 4))

    def forward(self, x: Tensor, batch: Tensor) -> Tensor:
        return self.conv(x, pyg.knn_graph(x, 3, batch))


def test_edge_conv_masks_missing_neighbours(points):
    x, _ = points
    module = GraphThenConv()
    pairs = brute_force(x, x, BATCH_X, BATCH_X, k=3, loop=False)
    program = inference_model(module, Options(backend="capture", show_progress=False))
    torch.testing.assert_close(program(x, BATCH_X), manual_edge_conv(module.conv, x, pairs))


def test_gravnet_conv_masks_missing_neighbours(points):
    provide_point_layers()
    x, _ = points
    conv = pyg.GravNetConv(3, 4, space_dimensions=2, propagate_dimensions=2, k=3)
    space, features = conv.lin_s(x), conv.lin_h(x)
    pairs = brute_force(space.detach(), space.detach(), BATCH_X, BATCH_X, k=3)
    rows = []
    for i in range(len(x)):
        own = [j for a, j in sorted(pairs) if a == i]
        weight = torch.exp(-10 * (space[own] - space[i]).square().sum(-1, keepdim=True))
        messages = features[own] * weight
        rows.append(torch.cat([messages.mean(0), messages.amax(0)]))
    expected = conv.lin_out1(x) + conv.lin_out2(torch.stack(rows))
    program = inference_model(conv, Options(backend="capture", show_progress=False))
    torch.testing.assert_close(program(x, BATCH_X), expected)


# Two squares in the same place, and two points in the middle of their sides.
SQUARES = torch.tensor([[-1, -1], [-1, 1], [1, 1], [1, -1]] * 2)
MIDDLES = torch.tensor([[1.0, 0.0], [-1.0, 0.0]])


def grid(size: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.cartesian_prod(*[torch.arange(size, dtype=dtype)] * 2)


def lowest_first(x: Tensor, y: Tensor, k: int) -> list[list[int]]:
    """Return what PyG's search takes: an insertion that lets earlier points stay in front."""
    found = []
    for point in y:
        distance = (x - point).square().sum(-1).tolist()
        found.append(sorted(range(len(x)), key=distance.__getitem__)[:k])
    return found


def test_equidistant_neighbours_are_the_first_ones():
    # The example of torch_cluster's own tests: of four equally distant points two are chosen.
    assert as_pairs(knn(SQUARES, MIDDLES, 2)) == {(0, 2), (0, 3), (1, 0), (1, 1)}
    assert knn(SQUARES, MIDDLES, 4)[1].tolist() == [2, 3, 6, 7, 0, 1, 4, 5]
    batch_x, batch_y = torch.tensor([0] * 4 + [1] * 4), torch.tensor([0, 1])
    found = as_pairs(knn(SQUARES, MIDDLES, 2, batch_x, batch_y))
    assert found == {(0, 2), (0, 3), (1, 4), (1, 5)}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16])
def test_neighbours_on_a_grid_come_in_the_order_of_their_indices(dtype):
    x = grid(16, dtype)
    expected = lowest_first(x.float(), x.float(), 7)
    assert knn(x, x, 7)[1].view(-1, 7).tolist() == expected
    near = radius(x, x, 1.5, max_num_neighbors=5)[1].view(-1, 5)
    assert near[17].tolist() == [17, 1, 16, 18, 33]


def test_equidistant_neighbours_are_the_same_ones_in_native_code():
    x = grid(12)

    class Search(nn.Module):
        def forward(self, pos: Tensor):
            return knn(pos, pos, 6), knn_graph(pos, 3), radius_graph(pos, 1.0)

    program = inference_model(Search(), Options(show_progress=False))
    for got, wanted in zip(program(x), Search()(x), strict=True):
        assert torch.equal(got, wanted)


def test_distances_that_only_a_root_would_make_equal_stay_different():
    # The roots of 2**23 + 1 and of 2**23 are the same number in float32.
    x = torch.tensor([[2048.0, 2048.0, 1.0], [2048.0, 2048.0, 0.0]])
    assert knn(x, torch.zeros(1, 3), 2)[1].tolist() == [1, 0]


def test_negative_and_equal_cosine_distances_are_in_order():
    x = torch.tensor([[0.0, 1.0], [3.0, 0.1], [3.0, 0.0], [-1.0, 0.0], [3.0, 0.1]])
    assert knn(x, torch.tensor([[7.0, 0.0]]), 5, cosine=True)[1].tolist() == [2, 1, 4, 0, 3]


def test_distances_of_wide_features():
    x, y = torch.randn(20, 37), torch.randn(5, 37)
    expected = torch.cdist(y, x).argsort(dim=1)[:, :4]
    assert torch.equal(knn(x, y, 4)[1].view(5, 4), expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_points_that_are_not_numbers_are_nobodys_neighbours(dtype):
    x = torch.tensor([[float("nan")], [3.0], [-float("nan")], [1.0]], dtype=dtype)
    assert knn(x, torch.zeros(1, 1, dtype=dtype), 2)[1].tolist() == [3, 1]
