"""The native convolution against plain torch: values, derivatives, threads, refusals."""

from pathlib import Path

import pytest
import torch

from torchkiln.core import ArgumentError
from torchkiln.ops import _cfconv_reference as reference
from torchkiln.ops import cfconv, cfconv_table
from torchkiln.ops._cfconv_edges import Edges, Places
from torchkiln.ops._native import load_native

NUM_KNOTS, SPACING = 40, 0.25
LAST_ANGSTROM = (NUM_KNOTS - 3) * SPACING

needs_kernel = pytest.mark.skipif(
    load_native("_cfconv") is None, reason="no C++ compiler: plain torch is all there is"
)


def molecules(sizes):
    """All pairs i < j of molecules of these sizes, and the molecule of each atom."""
    offsets = [sum(sizes[:k]) for k in range(len(sizes))]
    pairs = [torch.triu_indices(n, n, 1) + start for n, start in zip(sizes, offsets, strict=True)]
    return torch.cat(pairs, dim=1), torch.repeat_interleave(torch.tensor(sizes))


def edges_of(form, sizes=(5, 1, 9, 12)):
    pairs, batch = molecules(list(sizes))
    count = pairs.shape[1]
    if form == "pairs":
        return pairs, batch, torch.full((count,), 3, dtype=torch.uint8)
    if form == "mixed":
        return pairs, batch, torch.randint(0, 4, (count,), dtype=torch.uint8)
    both = torch.cat([pairs, pairs.flip(0), torch.arange(len(batch)).expand(2, -1)], dim=1)
    both = both[:, torch.randperm(both.shape[1])]
    return both[:, batch[both[0]].argsort(stable=True)], batch, None


def close(got, expected):
    # Sums of a dozen terms in another order; float32 has 7 digits.
    tolerance = 2e-5 if got.dtype == torch.float32 else 1e-12
    torch.testing.assert_close(got, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(
    ("width", "dtype"),
    [
        (1, torch.float64),
        (3, torch.float32),
        (100, torch.float32),
        (100, torch.float64),
        (130, torch.float32),
        (256, torch.float32),
    ],
)
@pytest.mark.parametrize("form", ["pairs", "mixed", "directed"])
def test_values_and_gradients_are_those_of_plain_torch(form, width, dtype):
    edge_index, batch, ways = edges_of(form)
    x = torch.randn(len(batch), width, dtype=dtype, requires_grad=True)
    filters = torch.randn(edge_index.shape[1], width, dtype=dtype, requires_grad=True)
    out = cfconv(x, filters, edge_index, batch, ways)
    expected = reference.convolve(x, filters, Edges(edge_index, batch, ways, False))
    close(out, expected)
    grad = torch.randn_like(out)
    for got, wanted in zip(
        torch.autograd.grad(out, (x, filters), grad),
        torch.autograd.grad(expected, (x, filters), grad),
        strict=True,
    ):
        close(got, wanted)


@pytest.mark.parametrize(
    ("width", "dtype"),
    [
        (1, torch.float64),
        (3, torch.float32),
        (100, torch.float32),
        (100, torch.float64),
        (130, torch.float32),
        (256, torch.float32),
    ],
)
@pytest.mark.parametrize("form", ["pairs", "mixed", "directed"])
def test_a_table_gives_what_interpolated_filters_give(form, width, dtype):
    edge_index, batch, ways = edges_of(form)
    x = torch.randn(len(batch), width, dtype=dtype, requires_grad=True)
    table = torch.randn(NUM_KNOTS, width, dtype=dtype, requires_grad=True)
    distances = (torch.rand(edge_index.shape[1], dtype=dtype) * LAST_ANGSTROM).requires_grad_()
    out = cfconv_table(x, table, distances, edge_index, batch, ways, spacing=SPACING)
    filters = reference.interpolate(table, Places(distances, None, NUM_KNOTS, SPACING, 0))
    expected = reference.convolve(x, filters, Edges(edge_index, batch, ways, False))
    close(out, expected)
    grad = torch.randn_like(out)
    inputs = (x, table, distances)
    for got, wanted in zip(
        torch.autograd.grad(out, inputs, grad),
        torch.autograd.grad(expected, inputs, grad),
        strict=True,
    ):
        close(got / wanted.abs().max(), wanted / wanted.abs().max())


def test_a_node_may_have_any_number_of_neighbours():
    edge_index, batch, ways = edges_of("mixed", sizes=(2, 150))
    x, filters = torch.randn(len(batch), 3), torch.randn(edge_index.shape[1], 3)
    expected = reference.convolve(x, filters, Edges(edge_index, batch, ways, False))
    close(cfconv(x, filters, edge_index, batch, ways) / 10, expected / 10)


def test_the_table_reproduces_cubics_exactly():
    distances = torch.tensor([0.0, 0.1, 1.0, 3.3, LAST_ANGSTROM], dtype=torch.float64)
    edge_index, batch = molecules([2] * len(distances))
    knots = (torch.arange(NUM_KNOTS, dtype=torch.float64) - 1) * SPACING
    # A cubic's coefficients are its values less a sixth of their curvature.
    values, curvature = 2 + knots - 0.5 * knots**2 + 0.25 * knots**3, -1 + 1.5 * knots
    table = (values - SPACING**2 / 6 * curvature)[:, None]
    x = torch.ones(len(batch), 1, dtype=torch.float64)
    out = cfconv_table(x, table, distances, edge_index, batch, None, spacing=SPACING)
    cubic = 2 + distances - 0.5 * distances**2 + 0.25 * distances**3
    torch.testing.assert_close(out[1::2, 0], cubic)
    assert out[::2].abs().max() == 0


@pytest.mark.parametrize("form", ["mixed", "directed"])
def test_derivatives_of_the_exact_form_to_second_order(form):
    edge_index, batch, ways = edges_of(form, sizes=(3, 4))
    x = torch.randn(len(batch), 3, dtype=torch.float64, requires_grad=True)
    filters = torch.randn(edge_index.shape[1], 3, dtype=torch.float64, requires_grad=True)

    def function(*tensors):
        return cfconv(*tensors, edge_index, batch, ways)

    assert torch.autograd.gradcheck(function, (x, filters))
    assert torch.autograd.gradgradcheck(function, (x, filters))


@pytest.mark.parametrize("form", ["mixed", "directed"])
def test_derivatives_of_the_table_form_to_second_order(form):
    edge_index, batch, ways = edges_of(form, sizes=(3, 3))
    x = torch.randn(len(batch), 2, dtype=torch.float64, requires_grad=True)
    table = torch.randn(8, 2, dtype=torch.float64, requires_grad=True)
    distances = (torch.rand(edge_index.shape[1], dtype=torch.float64) * 4.9).requires_grad_()

    def function(*tensors):
        return cfconv_table(*tensors, edge_index, batch, ways, spacing=1.0)

    assert torch.autograd.gradcheck(function, (x, table, distances))
    assert torch.autograd.gradgradcheck(function, (x, table, distances))


@pytest.mark.parametrize("order", [1, 2, 3])
def test_higher_derivatives_by_distance_are_those_of_plain_torch(order):
    edge_index, batch, ways = edges_of("mixed", sizes=(4, 4))
    x = torch.randn(len(batch), 5, dtype=torch.float64)
    table = torch.randn(NUM_KNOTS, 5, dtype=torch.float64)
    start = torch.rand(edge_index.shape[1], dtype=torch.float64) * LAST_ANGSTROM

    def derivative(convolve):
        distances = start.clone().requires_grad_()
        value = (convolve(distances) ** 2).sum()
        for _ in range(order):
            (slope,) = torch.autograd.grad(value, distances, create_graph=True)
            value = slope.sum()
        return value

    def plain(distances):
        filters = reference.interpolate(table, Places(distances, None, NUM_KNOTS, SPACING, 0))
        return reference.convolve(x, filters, Edges(edge_index, batch, ways, False))

    def ours(distances):
        return cfconv_table(x, table, distances, edge_index, batch, ways, spacing=SPACING)

    torch.testing.assert_close(derivative(ours), derivative(plain))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("form", ["pairs", "mixed", "directed"])
@pytest.mark.parametrize("width", [3, 100, 128])
@pytest.mark.parametrize("reverse", [False, True])
def test_gradients_in_one_pass_are_those_of_two(dtype, form, width, reverse):
    edge_index, batch, ways = edges_of(form, sizes=(5, 1, 9, 4))
    x, grad = (torch.randn(len(batch), width).to(dtype) for _ in range(2))
    table = torch.randn(NUM_KNOTS, width).to(dtype)
    distances, scale = torch.rand(2, edge_index.shape[1]).to(dtype) * LAST_ANGSTROM
    ops = torch.ops.torchkiln
    edges, places = (edge_index, batch, ways), (SPACING, 0)
    both = ops.cfconv_table_backward(x, grad, table, distances, scale, *edges, *places, reverse)
    by_x = ops.cfconv_table(grad, table, distances, scale, *edges, *places, not reverse)
    by_table = ops.cfconv_table_gradient(
        x, grad, distances, scale, NUM_KNOTS, *edges, *places, reverse
    )
    for found, expected in zip(both, (by_x, by_table), strict=True):
        torch.testing.assert_close(found, expected)


def every_result(threads, form, dtype=torch.float32):
    """Outputs and gradients of both forms, large enough for several threads."""
    torch.set_num_threads(threads)
    torch.manual_seed(5)
    edge_index, batch, ways = edges_of(form, sizes=(20, 3, 41, 1, 18, 25, 2, 30))
    x = torch.randn(len(batch), 100, dtype=dtype, requires_grad=True)
    filters = torch.randn(edge_index.shape[1], 100, dtype=dtype, requires_grad=True)
    table = torch.randn(NUM_KNOTS, 100, dtype=dtype, requires_grad=True)
    distances = (torch.rand(edge_index.shape[1], dtype=dtype) * LAST_ANGSTROM).requires_grad_()
    first = cfconv(x, filters, edge_index, batch, ways)
    second = cfconv_table(x, table, distances, edge_index, batch, ways, spacing=SPACING)
    gradients = torch.autograd.grad((first**2 + second**2).sum(), (x, filters, table, distances))
    return [first, second, *gradients]


GRADIENT_OF_TABLE = 4  # among those


@needs_kernel
@pytest.mark.parametrize("form", ["mixed", "directed"])
def test_the_number_of_threads_changes_no_bit_but_of_tables_gradients(form, small_work_is_shared):
    alone = every_result(1, form)
    for threads in (2, 5, 16):
        many, again = every_result(threads, form), every_result(threads, form)
        for number, (one, other, same) in enumerate(zip(alone, many, again, strict=True)):
            assert torch.equal(other, same)
            if number == GRADIENT_OF_TABLE:
                torch.testing.assert_close(one / one.abs().max(), other / one.abs().max())
            else:
                assert torch.equal(one, other)
    torch.set_num_threads(2)


@needs_kernel
def test_there_is_one_pool_of_threads():
    every_result(2, "pairs")
    maps = Path("/proc/self/maps")
    if not maps.exists():
        pytest.skip("this system does not list mapped libraries")
    runtimes = {line.split()[-1] for line in maps.read_text().splitlines() if "omp.so" in line}
    assert len(runtimes) == 1, runtimes


@pytest.mark.parametrize("form", ["pairs", "directed"])
def test_without_a_compiler_plain_torch_gives_the_same(form, use_plain_torch):
    native = every_result(1, form, torch.float64)
    use_plain_torch()
    for one, other in zip(native, every_result(1, form, torch.float64), strict=True):
        torch.testing.assert_close(one, other)


def test_half_precision_runs_in_plain_torch():
    edge_index, batch, ways = edges_of("pairs", sizes=(3, 4))
    x, filters = torch.randn(7, 4), torch.randn(edge_index.shape[1], 4)
    out = cfconv(x.bfloat16(), filters.bfloat16(), edge_index, batch, ways)
    assert out.dtype == torch.bfloat16
    torch.testing.assert_close(
        out.float(), cfconv(x, filters, edge_index, batch, ways), atol=0.1, rtol=0.1
    )


def test_no_edges_give_zeros_and_zero_gradients():
    x = torch.randn(4, 6, requires_grad=True)
    nothing = torch.empty(2, 0, dtype=torch.long)
    table = torch.randn(NUM_KNOTS, 6, requires_grad=True)
    batch = torch.zeros(4, dtype=torch.long)
    out = cfconv_table(x, table, torch.empty(0), nothing, batch, spacing=SPACING)
    out = out + cfconv(x, torch.empty(0, 6), nothing, batch)
    assert torch.equal(out, torch.zeros(4, 6))
    for gradient in torch.autograd.grad(out.sum(), (x, table)):
        assert gradient.abs().max() == 0


def test_no_nodes_at_all():
    empty = torch.empty(0, dtype=torch.long)
    out = cfconv(torch.empty(0, 5), torch.empty(0, 5), empty.expand(2, 0), empty)
    assert out.shape == (0, 5)


def test_idle_edges_carry_nothing_not_even_nan():
    edge_index, batch, ways = edges_of("pairs", sizes=(3, 2))
    filler = torch.full((2, 5), 5)
    edge_index, batch = torch.cat([edge_index, filler], 1), torch.cat([batch, torch.tensor([2])])
    ways = torch.cat([ways, torch.zeros(5, dtype=torch.uint8)])
    x = torch.randn(6, 9)
    x[5] = float("nan")
    filters = torch.randn(len(ways), 9)
    filters[-5:] = float("nan")
    out = cfconv(x, filters, edge_index, batch, ways)
    table, distances = torch.randn(NUM_KNOTS, 9), torch.ones(len(ways))
    distances[-5:] = float("nan")
    out = out + cfconv_table(x, table, distances, edge_index, batch, ways, spacing=SPACING)
    assert torch.isfinite(out[:5]).all()
    assert torch.equal(out[5], torch.zeros(9))


def test_idle_edges_get_zero_gradients():
    edge_index, batch, _ = edges_of("pairs", sizes=(4,))
    ways = torch.tensor([3, 0, 1, 0, 2, 3], dtype=torch.uint8)
    filters = torch.randn(6, 8, requires_grad=True)
    distances = torch.ones(6, requires_grad=True)
    x, table = torch.randn(4, 8), torch.randn(NUM_KNOTS, 8)
    out = cfconv(x, filters, edge_index, batch, ways)
    out = out + cfconv_table(x, table, distances, edge_index, batch, ways, spacing=SPACING)
    for gradient in torch.autograd.grad((out**2).sum(), (filters, distances)):
        assert (gradient[ways == 0] == 0).all()
        assert (gradient[ways != 0] != 0).all()


@pytest.mark.parametrize("distance", [-0.01, LAST_ANGSTROM * 1.001, 1e30, float("inf")])
def test_distances_outside_the_table_are_not_extrapolated(distance):
    edge_index, batch = molecules([2])
    table = torch.full((NUM_KNOTS, 3), 7.0, requires_grad=True)
    distances = torch.tensor([distance], requires_grad=True)
    out = cfconv_table(torch.ones(2, 3), table, distances, edge_index, batch, spacing=SPACING)
    assert out.abs().max() == 0
    for gradient in torch.autograd.grad(out.sum(), (table, distances)):
        assert gradient.abs().max() == 0


def test_the_last_knot_counts_although_distances_are_rounded():
    edge_index, batch = molecules([2])
    spacing = 10.0 / 2045
    table = torch.ones(2048, 1)
    distances = torch.tensor([10.0]) * (1 + 1e-7)
    out = cfconv_table(torch.ones(2, 1), table, distances, edge_index, batch, spacing=spacing)
    torch.testing.assert_close(out, torch.tensor([[0.0], [1.0]]))


def test_a_distance_that_is_nan_shows():
    edge_index, batch = molecules([2, 2])
    distances = torch.tensor([float("nan"), 1.0], requires_grad=True)
    table, x = torch.ones(NUM_KNOTS, 3), torch.ones(4, 3)
    out = cfconv_table(x, table, distances, edge_index, batch, spacing=SPACING)
    assert out[1].isnan().all()
    torch.testing.assert_close(out[3], torch.ones(3))
    (slopes,) = torch.autograd.grad(out.sum(), distances)
    assert slopes[0].isnan()
    assert slopes[1].isfinite()


@pytest.mark.parametrize("native", [pytest.param(True, marks=needs_kernel), False])
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(
    ("edges", "message"),
    [
        ([[0, 1], [3, 4], [1, 2]], "edge 2 belongs to molecule 0, but stands after"),
        ([[0, 1], [2, 3], [3, 4]], "edge 1 joins node 2 of molecule 0 to node 3 of molecule 1"),
        ([[0, 1], [3, 5]], "edge 1 joins nodes 3 and 5, but there are 5 nodes"),
        ([[0, 1], [-1, 3]], "edge 1 joins nodes -1 and 3"),
        ([[7, 7]], "edge 0 joins nodes 7 and 7"),
    ],
)
def test_edges_that_are_not_grouped_are_refused(
    edges, message, threads, native, use_plain_torch, small_work_is_shared
):
    if not native:
        use_plain_torch()
    torch.set_num_threads(threads)
    edge_index, batch = torch.tensor(edges).T, torch.tensor([0, 0, 0, 1, 1])
    x, table = torch.randn(5, 3), torch.randn(NUM_KNOTS, 3, requires_grad=True)
    with pytest.raises(ArgumentError, match=message):
        cfconv(x, torch.randn(len(edges), 3), edge_index, batch)
    with pytest.raises(ArgumentError, match=message):
        cfconv_table(x, table, torch.ones(len(edges)), edge_index, batch, spacing=SPACING)
    torch.set_num_threads(2)


@pytest.mark.parametrize("batch", [[0, 1, 0, 1], [-1, 0, -1, 0], [-2, -2, -2, -2]])
def test_a_batch_vector_that_does_not_ascend_from_zero_is_refused(batch):
    edge, batch = torch.tensor([[0], [2]]), torch.tensor(batch)
    with pytest.raises(ArgumentError, match="ascending from 0"):
        cfconv(torch.randn(4, 3), torch.randn(1, 3), edge, batch)


@pytest.mark.parametrize("threads", [1, 2])
def test_molecules_whose_nodes_come_in_another_order_are_refused(threads, small_work_is_shared):
    """Edges ascend by molecule, but nodes do not: threads would zero each other's sums."""
    torch.set_num_threads(threads)
    edge_index, batch = torch.tensor([[2, 3, 0, 1], [3, 2, 1, 0]]), torch.tensor([5, 5, 2, 2])
    with pytest.raises(ArgumentError, match="ascending from 0"):
        cfconv(torch.randn(4, 8), torch.randn(4, 8), edge_index, batch)
    torch.set_num_threads(2)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x": torch.randn(5)}, "x must be"),
        ({"filters": torch.randn(2, 4)}, r"filters must be \[2, 3\]"),
        ({"filters": torch.randn(2, 3).double()}, "filters must be"),
        ({"edge_index": torch.tensor([[0, 1]])}, "edge_index must be"),
        ({"edge_index": torch.tensor([[0, 1], [1, 2]]).int()}, "int64"),
        ({"batch": torch.zeros(4, dtype=torch.long)}, r"batch must be \[5\]"),
        ({"ways": torch.ones(2)}, "ways must be"),
    ],
)
def test_wrong_forms_are_refused(change, message):
    arguments = {
        "x": torch.randn(5, 3),
        "filters": torch.randn(2, 3),
        "edge_index": torch.tensor([[0, 1], [1, 2]]),
        "batch": torch.zeros(5, dtype=torch.long),
        **change,
    }
    with pytest.raises(ArgumentError, match=message):
        cfconv(**arguments)


@pytest.mark.parametrize(
    ("table", "distances", "spacing", "message"),
    [
        (torch.randn(3, 3), torch.ones(1), 0.1, "at least 4 knots"),
        (torch.randn(9, 3), torch.ones(1), 0.0, "positive spacing"),
        (torch.randn(9, 4), torch.ones(1), 0.1, "table must be"),
        (torch.randn(9, 3), torch.ones(2), 0.1, "distances must be"),
    ],
)
def test_wrong_tables_are_refused(table, distances, spacing, message):
    edge_index, batch = molecules([2])
    with pytest.raises(ArgumentError, match=message):
        cfconv_table(torch.ones(2, 3), table, distances, edge_index, batch, spacing=spacing)


def test_strided_inputs_are_read_in_the_right_order():
    edge_index, batch, ways = edges_of("mixed", sizes=(4, 5))
    x, filters = torch.randn(6, 9).T, torch.randn(6, edge_index.shape[1]).T
    assert not x.is_contiguous()
    expected = reference.convolve(x, filters, Edges(edge_index, batch, ways, False))
    close(cfconv(x, filters, edge_index, batch, ways), expected)
    grads = torch.autograd.functional.vjp(
        lambda x: cfconv(x, filters, edge_index, batch, ways), x, torch.ones(1, 1).expand(9, 6)
    )
    assert grads[1].shape == (9, 6)
