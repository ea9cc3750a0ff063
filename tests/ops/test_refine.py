"""Rows of a finer grid: what the sums say, on any path, to any order."""

import pytest
import torch

from torchkiln.core import ArgumentError
from torchkiln.ops import refine

TAPS = 5


def by_hand(x, weights, num_rows, scale):
    x = x if scale is None else x * scale[:, None]
    rows = [
        sum(weights[k % 4, t] * x[k // 4 + t] for t in range(weights.shape[1]))
        for k in range(num_rows)
    ]
    return torch.stack(rows)


def inputs(num_rows, width, dtype=torch.float32):
    torch.manual_seed(num_rows)
    return (
        torch.randn(-(-num_rows // 4) + TAPS - 1, width, dtype=dtype, requires_grad=True),
        torch.randn(4, TAPS, dtype=dtype),
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("num_rows", "width"), [(1, 1), (8, 3), (10, 100), (103, 130)])
@pytest.mark.parametrize("scaled", [False, True])
def test_rows_and_gradients_are_those_of_the_sums(num_rows, width, dtype, scaled):
    x, weights = inputs(num_rows, width, dtype)
    scale = torch.randn(len(x), dtype=dtype) if scaled else None
    out = refine(x, weights, num_rows, scale=scale)
    expected = by_hand(x, weights, num_rows, scale)
    torch.testing.assert_close(out, expected, atol=1e-5, rtol=1e-5)
    grad = torch.randn_like(out)
    (found,), (wanted,) = (torch.autograd.grad(y, x, grad) for y in (out, expected))
    torch.testing.assert_close(found, wanted, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("threads", [2, 7])
def test_the_number_of_threads_changes_no_bit(threads, small_work_is_shared):
    x, weights = inputs(103, 40)
    found = []
    for number in (1, threads):
        torch.set_num_threads(number)
        out = refine(x, weights, 103)
        found.append((out, *torch.autograd.grad(out.square().sum(), x)))
    torch.set_num_threads(2)
    for one, many in zip(*found, strict=True):
        assert torch.equal(one, many)


def test_derivatives_to_second_order():
    x, weights = inputs(6, 2, torch.float64)
    scale = torch.rand(len(x), dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda x: refine(x, weights, 6, scale=scale), x)
    assert torch.autograd.gradgradcheck(lambda x: refine(x, weights, 6, scale=scale) ** 2, x)


def test_without_a_compiler_plain_torch_gives_the_same(use_plain_torch):
    x, weights = inputs(22, 9)
    scale = torch.randn(len(x))
    found = []
    for _ in range(2):
        out = refine(x, weights, 22, scale=scale)
        found.append((out, *torch.autograd.grad(out.square().sum(), x)))
        use_plain_torch()
    for native, plain in zip(*found, strict=True):
        torch.testing.assert_close(native, plain, atol=1e-4, rtol=1e-4)


def test_operators_keep_their_promises_to_the_compiler():
    x, weights = inputs(10, 3)
    scale = torch.randn(len(x))
    torch.library.opcheck(torch.ops.torchkiln.refine.default, (x, weights, scale, 10))
    torch.library.opcheck(torch.ops.torchkiln.coarsen.default, (torch.randn(10, 3), weights, scale))


def test_rows_that_do_not_fit_are_errors():
    x, weights = inputs(8, 3)
    with pytest.raises(ArgumentError, match="at least 7 coarse ones, got 6"):
        refine(x, weights, 12)
    with pytest.raises(ArgumentError, match=r"weights \[4, num_taps\]"):
        refine(x, weights[:3], 8)
    with pytest.raises(ArgumentError, match="same dtype"):
        refine(x, weights.double(), 8)
    with pytest.raises(ArgumentError, match=r"scale must be \[6\] of torch.float32"):
        refine(x, weights, 8, scale=torch.ones(5))
