"""Operations that depend on data are refused at the user's own line, with the rewrite."""

from __future__ import annotations

import importlib.util
import inspect
import os
import re

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - torch's own habit
from torch import Tensor, nn
from torch_geometric.nn import (
    GATConv,
    GCNConv,
    global_add_pool,
    global_max_pool,
    global_mean_pool,
)
from torch_geometric.utils import scatter, softmax, to_dense_batch

from torchkiln.core import DynamicShapeError, Options, TorchkilnError
from torchkiln.core._tracebacks import is_users
from torchkiln.runtime import inference_model, training_model

X = torch.arange(12.0).view(4, 3)
BATCH = torch.tensor([0, 0, 1, 1])
EDGES = torch.tensor([[0, 1], [1, 2], [2, 3]])


class Body(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.layer = nn.Linear(3, 3)
        self.gcn = GCNConv(3, 3)
        self.gat = GATConv(3, 3)
        self.function = function

    def forward(self, x: Tensor, batch: Tensor, edges: Tensor):
        return self.function(self, self.layer(x), batch, edges.t())


# Each function has exactly one offending line, marked for the test to find.


def boolean_mask(m, x, batch, edges):
    return x[batch > 0]  # here


def boolean_mask_of_target(m, x, batch, edges):
    mask = batch > 0
    return F.cross_entropy(x[mask], batch[mask])  # here


def boolean_assignment(m, x, batch, edges):
    x = x.clone()
    x[batch > 0] = x[batch > 0] + 1  # here
    return x


def mean_pool(m, x, batch, edges):
    return global_mean_pool(x, batch)  # here


def add_pool(m, x, batch, edges):
    return global_add_pool(x, batch)  # here


def max_pool(m, x, batch, edges):
    return global_max_pool(x, batch)  # here


def gcn_with_self_loops(m, x, batch, edges):
    return m.gcn(x, edges)  # here


def gat_with_self_loops(m, x, batch, edges):
    return m.gat(x, edges)  # here


def scatter_without_size(m, x, batch, edges):
    return scatter(x, batch, reduce="sum")  # here


def softmax_without_size(m, x, batch, edges):
    return softmax(x[:, 0], batch)  # here


def dense_batch(m, x, batch, edges):
    return to_dense_batch(x, batch)[0]  # here


def nonzero(m, x, batch, edges):
    return torch.nonzero(x > 0)  # here


def nonzero_method(m, x, batch, edges):
    return (x > 0).nonzero(as_tuple=True)[0]  # here


def argwhere(m, x, batch, edges):
    return torch.argwhere(x > 0)  # here


def where_with_one_argument(m, x, batch, edges):
    return torch.where(x > 0)[0]  # here


def masked_select(m, x, batch, edges):
    return torch.masked_select(x, x > 0)  # here


def unique(m, x, batch, edges):
    return torch.unique(batch)  # here


def unique_consecutive(m, x, batch, edges):
    return batch.unique_consecutive()  # here


def item(m, x, batch, edges):
    return x * x.max().item()  # here


def float_of_tensor(m, x, batch, edges):
    return x * float(x.max())  # here


def int_of_tensor(m, x, batch, edges):
    return x[: int(batch.max())]  # here


def tolist(m, x, batch, edges):
    return [x * n for n in batch.tolist()]  # here


def numpy(m, x, batch, edges):
    return torch.from_numpy(batch.numpy())  # here


def numpy_of_detached(m, x, batch, edges):
    return x + x.detach().cpu().numpy().sum()  # here


def branch(m, x, batch, edges):
    if x.sum() > 0:  # here
        return x
    return -x


def ternary(m, x, batch, edges):
    return x if x.sum() > 0 else -x  # here


def loop(m, x, batch, edges):
    while x.norm() > 1:  # here
        x = x / 2
    return x


def boolean_and(m, x, batch, edges):
    return x.any() and x  # here


def assertion(m, x, batch, edges):
    assert (x < 100).all()  # here
    return x


def allclose(m, x, batch, edges):
    return x * torch.allclose(x, x)  # here


def equal(m, x, batch, edges):
    return x * torch.equal(x, x)  # here


def repeat_interleave(m, x, batch, edges):
    return torch.repeat_interleave(x, batch, dim=0)  # here


def bincount(m, x, batch, edges):
    return torch.bincount(batch)  # here


def one_hot(m, x, batch, edges):
    return F.one_hot(batch)  # here


def range_of_tensor(m, x, batch, edges):
    return sum(x * i for i in range(batch.max()))  # here


def slice_by_tensor(m, x, batch, edges):
    return x[: batch.max()]  # here


def arange_of_tensor(m, x, batch, edges):
    return torch.arange(batch.max())  # here


def new_size(m, x, batch, edges):
    return torch.zeros(batch.max())  # here


def print_value(m, x, batch, edges):
    "".join(f"{value}" for value in [batch.sum().item()])  # here
    return x


CASES = [
    (boolean_mask, "torch.where(mask"),
    (boolean_mask_of_target, "ignore_index"),
    (boolean_assignment, "torch.where(mask"),
    (mean_pool, "size=batch_size"),
    (add_pool, "size=batch_size"),
    (max_pool, "size=batch_size"),
    (gcn_with_self_loops, "add_self_loops=False"),
    (gat_with_self_loops, "add_self_loops=False"),
    (scatter_without_size, "dim_size="),
    (softmax_without_size, "num_nodes="),
    (dense_batch, "max_num_nodes="),
    (nonzero, "nonzero_static"),
    (nonzero_method, "nonzero_static"),
    (argwhere, "nonzero_static"),
    (where_with_one_argument, "torch.where(condition, a, b)"),
    (masked_select, "torch.where(mask"),
    (unique, "dataset transform"),
    (unique_consecutive, "dataset transform"),
    (item, "keep it a tensor"),
    (float_of_tensor, "keep it a tensor"),
    (int_of_tensor, "keep it a tensor"),
    (tolist, "keep it a tensor"),
    (numpy, "keep it a tensor"),
    (numpy_of_detached, "keep it a tensor"),
    (branch, "torch.where(condition, a, b)"),
    (ternary, "torch.where(condition, a, b)"),
    (loop, "torch.where(condition, a, b)"),
    (boolean_and, "torch.where(condition, a, b)"),
    (assertion, "torch.where(condition, a, b)"),
    (allclose, "keep it a tensor"),
    (equal, "keep it a tensor"),
    (repeat_interleave, "output_size="),
    (bincount, "fixed number of bins"),
    (one_hot, "num_classes"),
    (range_of_tensor, "keep it a tensor"),
    (slice_by_tensor, "keep it a tensor"),
    (arange_of_tensor, "keep it a tensor"),
    (new_size, "keep it a tensor"),
    (print_value, "keep it a tensor"),
]


def offending_line(function) -> tuple[int, str]:
    lines, first = inspect.getsourcelines(function)
    (offset,) = [index for index, line in enumerate(lines) if "# here" in line]
    return first + offset, lines[offset].strip()


@pytest.mark.parametrize(
    ("function", "rewrite"), CASES, ids=lambda value: getattr(value, "__name__", "")
)
def test_dynamic_operation_is_refused_at_its_line(function, rewrite):
    line, source = offending_line(function)
    program = inference_model(Body(function), Options(backend="capture", show_progress=False))
    with pytest.raises(DynamicShapeError) as caught:
        program(X, BATCH, EDGES)
    message = str(caught.value)
    assert isinstance(caught.value, ValueError)
    assert isinstance(caught.value, TorchkilnError)
    assert message.startswith("Dynamic shapes disabled")
    assert f'File "{__file__}", line {line}, in {function.__name__}' in message.replace(
        "<listcomp>", function.__name__
    )
    assert source in message
    assert re.search(r"\n  why: .+\n  rewrite: .+", message)
    assert rewrite in message.split("rewrite:")[1]


def test_a_refused_program_leaves_the_module_usable():
    module = Body(branch)
    weight = module.layer.weight
    with pytest.raises(DynamicShapeError):
        training_model(module, Options(backend="capture", show_progress=False))(X, BATCH, EDGES)
    assert module.layer.weight is weight
    assert module(X, BATCH, EDGES).shape == X.shape


def test_eager_backend_runs_what_cannot_be_captured():
    program = inference_model(Body(boolean_mask), Options(backend="eager"))
    assert program(X, BATCH, EDGES).shape == (2, 3)


STATIC = {
    "pool with size": lambda m, x, batch, edges: global_mean_pool(x, batch, size=2),
    "scatter with size": lambda m, x, batch, edges: scatter(x, batch, dim_size=2, reduce="mean"),
    "where": lambda m, x, batch, edges: torch.where(batch[:, None] > 0, x, 0.0),
    "index by integers": lambda m, x, batch, edges: x[batch],
    "repeat": lambda m, x, batch, edges: torch.repeat_interleave(x, batch, dim=0, output_size=2),
    "nonzero_static": lambda m, x, batch, edges: torch.nonzero_static(batch, size=3),
    "one_hot": lambda m, x, batch, edges: F.one_hot(batch, num_classes=2),
    "shape decisions": lambda m, x, batch, edges: x if x.shape[0] > 3 and x.dim() == 2 else -x,
    "bins": lambda m, x, batch, edges: torch.zeros(2).index_add_(0, batch, torch.ones(4)),
    "dense batch": lambda m, x, batch, edges: to_dense_batch(
        x, batch, batch_size=2, max_num_nodes=3
    )[0],
    "masked fill": lambda m, x, batch, edges: x.masked_fill(x > 0, 0.0),
    "boolean fill": lambda m, x, batch, edges: _fill(x, batch),
}


def _fill(x: Tensor, batch: Tensor) -> Tensor:
    x = x.clone()
    x[batch > 0] = 5.0
    return x


@pytest.mark.parametrize("name", STATIC)
def test_the_rewrites_are_static(name):
    module = Body(STATIC[name])
    program = inference_model(module, Options(backend="capture", show_progress=False))
    with torch.no_grad():
        torch.testing.assert_close(program(X, BATCH, EDGES), module(X, BATCH, EDGES))


@pytest.mark.parametrize("package", ["torchkiln", "popdist", "poptorch", "poptorch_geometric"])
def test_own_code_is_never_shown_as_the_users(package):
    path = os.path.join(os.path.dirname(importlib.util.find_spec(package).origin), "ops.py")
    frames = {}
    exec(compile("import sys; frames['of'] = sys._getframe()", path, "exec"), {"frames": frames})
    assert not is_users(frames["of"])
