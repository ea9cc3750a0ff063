"""Layers as one operator: what plain torch gives, for any sizes, threads and derivatives."""

import itertools
import math

import pytest
import torch

from torchkiln.core import ArgumentError
from torchkiln.ops import Layer, _softplus_mlp, softplus_mlp
from torchkiln.ops._native import load_native
from torchkiln.ops._softplus_mlp import plain_softplus_mlp

# Rows, inputs, hidden, outputs, outputs of the third layer.
SIZES = [(2320, 128, 128, 128, 128), (275, 50, 128, 128, 1), (333, 100, 100, 100, 100)]
SIZES += [(7, 3, 5, 2, 9), (100, 128, 64, 1, 1), (1, 1, 1, 1, 1), (97, 17, 33, 65, 31)]
# One sum of a hundred products may be off by several roundings, and that of plain torch by none.
ROUNDINGS = 1e-6
needs_kernel = pytest.mark.skipif(
    load_native("_softplus_mlp") is None, reason="needs a C++ compiler"
)


def tensors(sizes, residual=True, third=True):
    """Arguments of the operator, in float64."""
    rows, inputs, hidden, outputs, last = sizes
    torch.manual_seed(rows)

    def draw(*shape):
        return torch.randn(*shape, dtype=torch.float64) / shape[-1] ** 0.5

    layers = (2 * draw(hidden, inputs), draw(hidden), draw(outputs, hidden), draw(outputs))
    return [
        3 * draw(rows, inputs),
        *layers,
        draw(rows, outputs) if residual else None,
        draw(last, outputs) if third else None,
    ]


def evaluate(compute, arguments, dtype):
    """Results and the gradients of all arguments, for gradients that are the same each time."""
    given = [None if t is None else t.to(dtype).requires_grad_() for t in arguments]
    y, _, z = compute(*given)
    torch.manual_seed(1)
    grads = [torch.randn(out.shape, dtype=torch.float64).to(dtype) for out in (y, z)]
    total = sum((out * grad).sum() for out, grad in zip((y, z), grads, strict=True))
    return [y, z, *torch.autograd.grad(total, [t for t in given if t is not None])]


def error(found, truth):
    return ((found.detach().double() - truth).norm() / truth.norm()).item()


@needs_kernel
@pytest.mark.parametrize(("residual", "third"), list(itertools.product([True, False], repeat=2)))
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_results_and_gradients_are_as_exact_as_those_of_plain_torch(sizes, residual, third):
    arguments = tensors(sizes, residual, third)
    truth = evaluate(plain_softplus_mlp, arguments, torch.float64)
    plain = evaluate(plain_softplus_mlp, arguments, torch.float32)
    native = evaluate(_softplus_mlp._forward, arguments, torch.float32)
    for exact, one, other in zip(truth, plain, native, strict=True):
        if exact.numel():
            assert error(other, exact) <= 2 * error(one, exact) + ROUNDINGS


@pytest.mark.parametrize("sizes", SIZES[2:5], ids=str)
def test_without_a_kernel_the_operator_gives_the_same(sizes):
    arguments = tensors(sizes)
    truth = evaluate(plain_softplus_mlp, arguments, torch.float64)
    for exact, found in zip(
        truth, evaluate(_softplus_mlp._forward, arguments, torch.float64), strict=True
    ):
        torch.testing.assert_close(found, exact)


@needs_kernel
def test_threads_share_rows_and_give_the_same_each_time(small_work_is_shared):
    arguments = tensors(SIZES[2])
    alone = None
    for threads in (1, 2, 7):
        torch.set_num_threads(threads)
        once, again = (evaluate(_softplus_mlp._forward, arguments, torch.float32) for _ in range(2))
        alone = alone or once
        for one, other, first in zip(once, again, alone, strict=True):
            assert torch.equal(one, other)
            torch.testing.assert_close(one, first, atol=1e-4, rtol=1e-4)
        # Rows do not depend on how many threads there are.
        assert torch.equal(once[0], alone[0])
    torch.set_num_threads(2)


@needs_kernel
def test_softplus_of_any_number():
    x = torch.tensor([-math.inf, -1e30, -100.0, -20.0, -1e-3, 0.0, 0.7, 30.0, 3e38, math.inf])
    # Weights of 1 and nothing else: the operator is the activation itself.
    one, none = torch.ones(1, 1), torch.zeros(1)
    given = x[:, None].clone().requires_grad_()
    (y, _) = softplus_mlp(given, Layer(one, none), Layer(one, none))
    exact = torch.nn.functional.softplus(x.double()) - math.log(2)
    torch.testing.assert_close(y[:, 0].double(), exact, atol=1e-7, rtol=2e-7)
    (slope,) = torch.autograd.grad(y.sum(), given)
    torch.testing.assert_close(slope[:, 0], torch.sigmoid(x), atol=1e-7, rtol=1e-6)
    spoilt = torch.full((1, 1), math.nan)
    assert softplus_mlp(spoilt, Layer(one, none), Layer(one, none))[0].isnan().all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_derivatives_of_derivatives(dtype):
    arguments = tensors((4, 3, 2, 2, 3))
    given = [t.to(dtype).requires_grad_() for t in arguments]

    def second(compute):
        y, _, z = compute(*given)
        grads = torch.autograd.grad((y**2).sum() + (z**2).sum(), given, create_graph=True)
        return torch.autograd.grad(sum((grad**2).sum() for grad in grads), given)

    for found, wanted in zip(
        second(_softplus_mlp._forward), second(plain_softplus_mlp), strict=True
    ):
        torch.testing.assert_close(found, wanted, atol=1e-3, rtol=1e-4)


def test_gradients_of_one_result_or_of_no_weight():
    arguments = [t.float() for t in tensors((20, 6, 7, 5, 4))]
    for used, wanted in itertools.product((0, 2), ((0,), (1, 6), (5,), tuple(range(7)))):
        found = []
        for compute in (_softplus_mlp._forward, plain_softplus_mlp):
            given = [t.clone().requires_grad_(n in wanted) for n, t in enumerate(arguments)]
            out = compute(*given)[used].square().sum()
            chosen = [given[n] for n in wanted]
            if not out.requires_grad:
                continue
            found.append(torch.autograd.grad(out, chosen, allow_unused=True))
        for one, other in zip(*found, strict=True):
            # What has no influence has no gradient, or one of 0.
            zero = torch.zeros(1)
            torch.testing.assert_close(
                zero if one is None else one,
                torch.zeros_like(zero if one is None else one) if other is None else other,
            )


def test_operators_keep_their_promises_to_the_compiler():
    given = [t.float().requires_grad_() for t in tensors((9, 3, 4, 2, 3))]
    torch.library.opcheck(torch.ops.torchkiln.softplus_mlp.default, tuple(given))


def test_half_precision_and_autocast_run_in_plain_torch():
    x, w, b, v, c, h, u = (t.float() for t in tensors((9, 3, 4, 2, 3)))
    y, z = softplus_mlp(x, Layer(w, b), Layer(v, c), residual=h, third=u)
    with torch.autocast("cpu"):
        low, _ = softplus_mlp(x, Layer(w, b), Layer(v, c), residual=h, third=u)
    torch.testing.assert_close(low.float(), y, atol=0.1, rtol=0.1)
    assert not torch.equal(low.float(), y)
    half = [t.bfloat16() for t in (x, w, b, v, c)]
    out, _ = softplus_mlp(half[0], Layer(*half[1:3]), Layer(*half[3:]))
    assert out.dtype == torch.bfloat16
    assert z.shape == (9, 3)


@pytest.mark.parametrize(
    ("name", "wrong"),
    [("second", torch.zeros(2, 5)), ("residual", torch.zeros(9, 3)), ("x", torch.zeros(9, 4))],
)
def test_shapes_that_do_not_fit_are_errors(name, wrong):
    x, w, b, v, c, h, u = (t.float() for t in tensors((9, 3, 4, 2, 3)))
    x, v, h = (wrong if name == n else t for n, t in (("x", x), ("second", v), ("residual", h)))
    with pytest.raises(ArgumentError, match=f"{name}.* must be"):
        softplus_mlp(x, Layer(w, b), Layer(v, c), residual=h, third=u)
