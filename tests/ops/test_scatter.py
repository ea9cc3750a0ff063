"""Aggregation kernels against torch's own operators."""

import pytest
import torch

from torchkiln.ops._scatter import scatter_extreme, scatter_sum

ROWS = 12
SHAPES = [(50,), (50, 100), (50, 3, 5), (0, 4), (50, 0)]
DTYPES = [torch.float32, torch.float64, torch.bfloat16]


def sample(shape, dtype):
    index = torch.randint(1, 9, shape[:1])
    return torch.randn(shape).to(dtype), index


@pytest.fixture(params=["native", "plain"])
def kernels(request, use_plain_torch):
    """Both forms: C++, and plain torch where there is no compiler."""
    if request.param == "plain":
        use_plain_torch()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("with_base", [False, True])
def test_sums_are_those_of_index_add(shape, dtype, with_base, kernels):
    x, index = sample(shape, dtype)
    base = torch.randn(ROWS, *shape[1:]).to(dtype) if with_base else None
    kept = None if base is None else base.clone()
    start = torch.zeros(ROWS, *shape[1:], dtype=dtype) if base is None else base
    expected = start.index_add(0, index, x)
    torch.testing.assert_close(scatter_sum(x, index, ROWS, None, None, base), expected)
    assert base is None or torch.equal(base, kept)


@pytest.mark.parametrize("dtype", DTYPES[:2], ids=str)
@pytest.mark.parametrize(
    ("shape", "factors"),
    [
        ((64,), None),
        ((64,), (1,)),
        ((64,), (64,)),
        ((4, 16), (4, 1)),
        ((4, 16), (1, 1)),
        ((4, 16), (4, 16)),
        ((3, 5), (3, 1)),
        ((), ()),
    ],
    ids=str,
)
def test_rows_are_gathered_and_weighted(shape, factors, dtype, kernels):
    table = torch.randn(9, *shape, dtype=dtype)
    source, index = torch.randint(9, (40,)), torch.randint(ROWS, (40,))
    weight = None if factors is None else torch.randn(40, *factors, dtype=dtype)
    rows = table[source] if weight is None else table[source] * weight
    expected = torch.zeros(ROWS, *shape, dtype=dtype).index_add(0, index, rows)
    torch.testing.assert_close(scatter_sum(table, index, ROWS, source, weight), expected)


@pytest.mark.parametrize("largest", [True, False])
@pytest.mark.parametrize("dtype", DTYPES[:2], ids=str)
@pytest.mark.parametrize("shape", SHAPES[:4], ids=str)
@pytest.mark.parametrize("base", ["none", "kept", "included"])
def test_extremes_are_those_of_scatter_reduce(shape, dtype, largest, base, kernels):
    x, index = sample(shape, dtype)
    x[:1] = float("nan")
    start = torch.zeros(ROWS, *shape[1:], dtype=dtype)
    if base != "none":
        start.normal_()
    included = base == "included"
    places = index.view(-1, *[1] * (x.dim() - 1)).expand_as(x)
    name = "amax" if largest else "amin"
    expected = start.scatter_reduce(0, places, x, name, include_self=included)
    given = None if base == "none" else start
    found = scatter_extreme(x, index, ROWS, largest, given, included)
    torch.testing.assert_close(found, expected, equal_nan=True, rtol=0, atol=0)


@pytest.mark.parametrize("width", [8, 37, 64])
def test_the_number_of_threads_changes_no_bit(width, small_work_is_shared):
    x, weight = torch.randn(300, width), torch.randn(1000, 1)
    source, index = torch.randint(300, (1000,)), torch.randint(40, (1000,))
    results = []
    for threads in (1, 2, 7):
        torch.set_num_threads(threads)
        total = scatter_sum(x, index, 50, source, weight)
        results.append((total, scatter_extreme(x[source], index, 50, True, None, False)))
    torch.set_num_threads(2)
    for total, extreme in results[1:]:
        assert torch.equal(total, results[0][0])
        assert torch.equal(extreme, results[0][1])


def test_slices_and_expanded_rows_are_read_where_they_are():
    wide, index = torch.randn(20, 12), torch.randint(5, (20,))
    for x in (wide[:, 4:8], wide[:, ::3], wide.T[:20].T, wide[:1].expand(20, 12)):
        expected = torch.zeros(5, x.shape[1]).index_add(0, index, x)
        torch.testing.assert_close(scatter_sum(x, index, 5), expected)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("wrong", [-1, 5])
def test_indices_out_of_range_are_refused(wrong, threads, small_work_is_shared):
    torch.set_num_threads(threads)
    good, bad = torch.tensor([0, 4, 2]), torch.tensor([0, wrong, 2])
    x = torch.randn(5, 64)
    with pytest.raises(RuntimeError, match=f"entry 1 .* goes to row {wrong}, but there are 5"):
        scatter_sum(x, bad, 5, good)
    with pytest.raises(RuntimeError, match=f"entry 1 .* comes from row {wrong}"):
        scatter_sum(x, good, 5, bad)
    with pytest.raises(RuntimeError, match=f"goes to row {wrong}"):
        scatter_extreme(x[:3], bad, 5, True, None, False)
    torch.set_num_threads(2)


@pytest.mark.parametrize(
    "call",
    [
        lambda x, i: torch.library.opcheck(scatter_sum, (x, i, 7, i, x[:, :1], None)),
        lambda x, i: torch.library.opcheck(scatter_extreme, (x, i, 7, True, None, False)),
    ],
    ids=["sum", "extreme"],
)
def test_operators_keep_torchs_rules(call):
    call(torch.randn(6, 4), torch.randint(6, (6,)))
