"""Which operations of a recorded graph become aggregation kernels, and that numbers stay."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx

from torchkiln.core import Options
from torchkiln.ops import _scatter
from torchkiln.runtime import identity_loss, inference_model, training_model
from torchkiln.runtime.passes._aggregation import aggregate_natively

INDEX = torch.tensor([2, 0, 1, 3, 3, 1, 0])
SOURCE = torch.tensor([4, 4, 0, 1, 2, 6, 5])
ROWS = 5
# float32, in another order of summation.
TOLERANCE = 1e-6
KERNELS = ("torchkiln.scatter_sum.default", "torchkiln.scatter_extreme.default")

pytestmark = pytest.mark.skipif(not _scatter.has_scatter_kernels(), reason="no C++ compiler")


def recorded(function, *inputs):
    """Return the rewritten graph of a function, and how often it calls each operator."""
    graph = make_fx(function, tracing_mode="fake")(*inputs)
    aggregate_natively(graph)
    graph.graph.lint()
    graph.recompile()
    names = [str(node.target) for node in graph.graph.nodes if node.op == "call_function"]
    return graph, names


def assert_same(function, *inputs):
    graph, names = recorded(function, *inputs)
    expected = function(*(tensor.clone() for tensor in inputs))
    found = graph(*(tensor.clone() for tensor in inputs))
    torch.testing.assert_close(found, expected, atol=TOLERANCE, rtol=TOLERANCE)
    return names


def wide(index, x):
    return index.view(-1, *[1] * (x.dim() - 1)).expand_as(x)


def zeros(x):
    return x.new_zeros(ROWS, *x.shape[1:])


def extreme(reduce, include=False):
    return lambda x, i: zeros(x).scatter_reduce(0, wide(i, x), x, reduce, include_self=include)


REWRITTEN = {
    "index_add": lambda x, i: zeros(x).index_add(0, i, x),
    "index_add_": lambda x, i: zeros(x).index_add_(0, i, x),
    "index_add onto values": lambda x, i: x[:ROWS].exp().index_add(0, i, x),
    "scatter_add": lambda x, i: zeros(x).scatter_add(0, wide(i, x), x),
    "scatter_add_": lambda x, i: zeros(x).scatter_add_(0, wide(i, x), x),
    "scatter_reduce sum": lambda x, i: zeros(x).scatter_reduce(0, wide(i, x), x, "sum"),
    "amax": extreme("amax"),
    "amin": extreme("amin"),
    "amax onto values": lambda x, i: x[:ROWS].exp().scatter_reduce(0, wide(i, x), x, "amax"),
    "index_put": lambda x, i: zeros(x).index_put((i - ROWS,), x, accumulate=True),
    "embedding": lambda x, i: torch.ops.aten.embedding_dense_backward(x, i, ROWS, -1, False),
    "embedding with padding": lambda x, i: torch.ops.aten.embedding_dense_backward(
        x, i, ROWS, 3, False
    ),
}


@pytest.mark.parametrize("shape", [(7, 6), (7, 2, 3)], ids=str)
@pytest.mark.parametrize("name", REWRITTEN)
def test_aggregations_become_kernels(name, shape):
    if name.startswith("embedding"):
        shape = (7, 6)  # one vector an index
    x = torch.randn(shape)
    names = assert_same(REWRITTEN[name], x, INDEX)
    assert sum(name in KERNELS for name in names) == 1
    assert not any("scatter_add" in name or "index_add" in name for name in names)


@pytest.mark.parametrize("name", ["index_add_", "scatter_add_", "amax"])
def test_rows_may_be_single_numbers(name):
    assert any(name in KERNELS for name in assert_same(REWRITTEN[name], torch.randn(7), INDEX))


FUSED = {
    "selected": lambda x, w, s, i: x.index_select(0, s),
    "gathered": lambda x, w, s, i: x.gather(0, wide(s, x)),
    "weighted": lambda x, w, s, i: w[:, :1, :1] * x.index_select(0, s),
    "weighted by head": lambda x, w, s, i: x.index_select(0, s) * w[:, :, :1],
    "weighted by feature": lambda x, w, s, i: x.index_select(0, s) * w,
}


@pytest.mark.parametrize("name", FUSED)
def test_rows_that_are_only_summed_are_never_made(name):
    def function(x, w, s, i):
        return zeros(x).index_add(0, i, FUSED[name](x, w, s, i))

    inputs = torch.randn(7, 2, 3), torch.randn(7, 2, 3), SOURCE, INDEX
    names = assert_same(function, *inputs)
    assert not any("index_select" in name or "gather" in name or "mul" in name for name in names)


def _written_between(x, i):
    x = x * 1
    rows = x.index_select(0, i)
    x.add_(1)
    return zeros(x).index_add(0, i, rows) + x.sum()


def _written_sum_between(x, i):
    total = zeros(x).index_add_(0, i, x)
    rows = total.index_select(0, i)
    total.pow_(2)
    return zeros(x).index_add(0, i, rows) + total


def _read_while_growing(x, i):
    total = zeros(x)
    half = total.index_add_(0, i, x).sum()
    return total.index_add_(0, i, x) * half


def _view_of_zeros(x, i):
    total = zeros(x)
    first = total[:2]
    total.index_add_(0, i, x)
    return first


MEMORY = [_written_between, _written_sum_between, _read_while_growing, _view_of_zeros]


@pytest.mark.parametrize("function", MEMORY, ids=lambda f: f.__name__.lstrip("_"))
def test_writes_are_seen_in_their_order(function):
    assert_same(function, torch.randn(7, 6), INDEX)


LEFT = {
    "several indices": lambda x, i: zeros(x).index_put((i, i), x[:, 0], accumulate=True),
    "an index a number": lambda x, i: zeros(x).scatter_add(0, wide(i, x).clone(), x),
    "another axis": lambda x, i: x.new_zeros(7, ROWS).index_add(1, i[:6], x),
    "a factor for all": lambda x, i: zeros(x).index_add(0, i, x, alpha=3),
    "integers": lambda x, i: zeros(x).long().index_add(0, i, x.long()),
    "half precision": lambda x, i: zeros(x).bfloat16().index_add(0, i, x.bfloat16()),
    "products": lambda x, i: zeros(x).scatter_reduce(0, wide(i, x), x, "prod"),
    "replaced values": lambda x, i: zeros(x).index_put((i[:4],), x[:4]),
    "narrower rows": lambda x, i: x.new_zeros(ROWS, 9).scatter_add(0, wide(i, x), x),
}


@pytest.mark.parametrize("name", LEFT)
def test_everything_else_stays(name):
    x = torch.randn(7, 6)
    names = assert_same(LEFT[name], x, INDEX)
    assert not any(name in KERNELS for name in names)


def test_without_a_compiler_nothing_is_rewritten(monkeypatch):
    monkeypatch.setattr(_scatter, "load_native", lambda name: None)
    names = assert_same(REWRITTEN["scatter_add_"], torch.randn(7, 6), INDEX)
    assert not any(name in KERNELS for name in names)


class _Forces(nn.Module):
    """A loss on a gradient: second derivatives of aggregations."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.tensor([0.7, -0.3, 1.1]))

    def forward(self, x):
        x = x.detach().requires_grad_()
        rows = (x * self.scale).tanh().index_select(0, SOURCE) * x.sum(-1, keepdim=True)
        energy = zeros(rows).index_add(0, INDEX, rows).square().sum()
        (force,) = torch.autograd.grad(energy, x, create_graph=True)
        return identity_loss(force.square().mean(), reduction="mean")


@pytest.mark.parametrize(
    "backend",
    ["capture", pytest.param("inductor", marks=[pytest.mark.inductor, pytest.mark.slow])],
)
def test_second_derivatives_are_those_of_eager(backend, cache_dir):
    x, weights = torch.randn(7, 3), {}
    for kind in ("eager", backend):
        module = _Forces()
        options = Options(backend=kind, cache_dir=cache_dir, show_progress=False)
        program = training_model(module, options, torch.optim.SGD(module.parameters(), lr=0.01))
        losses = torch.stack([program(x).flatten()[0] for _ in range(3)])
        weights[kind] = torch.cat([losses, module.scale.detach()])
    torch.testing.assert_close(weights[backend], weights["eager"], atol=1e-4, rtol=1e-4)


def test_an_index_out_of_range_is_an_error_of_the_program():
    class Sum(nn.Module):
        def forward(self, x, index):
            return zeros(x).index_add(0, index, x)

    program = inference_model(Sum(), Options(backend="capture", show_progress=False))
    program(torch.randn(7, 3), INDEX)
    with pytest.raises(RuntimeError, match=r"entry 2 .* goes to row 5, but there are 5 rows"):
        program(torch.randn(7, 3), torch.tensor([0, 1, 5, 0, 0, 0, 0]))
