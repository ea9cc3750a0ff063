"""Statistics over real rows only; a warning where they are not."""

from __future__ import annotations

import copy
import warnings

import pytest
import torch
import torch_geometric.nn as pyg
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from torch_geometric.data import Data

from torchkiln.core import ArgumentError, Options
from torchkiln.graphs import FixedSizeLoader, _padding_seen
from torchkiln.graphs.layers import batch_form, make_static
from torchkiln.runtime import inference_model

CAPTURE = Options(backend="capture", show_progress=False)
ROWS, REAL = 9, 6
MASK = torch.arange(ROWS) < REAL


def static(norm: nn.Module) -> nn.Module:
    return make_static(copy.deepcopy(norm), verbose=False)


@pytest.fixture(autouse=True)
def _no_padding_seen(monkeypatch):
    monkeypatch.setattr(_padding_seen, "_seen", False)


NORMS = {
    "default": lambda: nn.BatchNorm1d(4),
    "cumulative": lambda: nn.BatchNorm1d(4, momentum=None),
    "no affine": lambda: nn.BatchNorm1d(4, affine=False),
    "no tracking": lambda: nn.BatchNorm1d(4, track_running_stats=False),
    "PyG": lambda: pyg.BatchNorm(4),
}


CASES = [(name, (ROWS, 4)) for name in NORMS]
CASES += [("default", (ROWS, 4, 5)), ("no affine", (ROWS, 4, 5))]


@pytest.mark.parametrize("filler", [0.0, 1e30])
@pytest.mark.parametrize(("name", "shape"), CASES)
def test_masked_batch_norm_equals_the_unpadded_one(name, filler, shape):
    plain = NORMS[name]()
    masked = static(plain)
    for step in range(3):
        x = torch.randn(shape) * (step + 1) + step
        x[REAL:] = filler
        a = x[:REAL].clone().requires_grad_()
        b = x.clone().requires_grad_()
        expected = plain(a)
        with batch_form(node_mask=MASK):
            got = masked(b)
        torch.testing.assert_close(got[:REAL], expected, atol=1e-5, rtol=1e-5)
        weight = torch.randn_like(expected)
        (expected * weight).sum().backward()
        (got[:REAL] * weight).sum().backward()
        torch.testing.assert_close(b.grad[:REAL], a.grad, atol=1e-5, rtol=1e-5)
        assert b.grad[REAL:].eq(0).all()
    for first, second in zip(plain.buffers(), masked.buffers(), strict=True):
        torch.testing.assert_close(first, second)
    for first, second in zip(plain.parameters(), masked.parameters(), strict=True):
        torch.testing.assert_close(first.grad, second.grad, atol=1e-5, rtol=1e-5)


def test_filler_comes_out_as_the_bias():
    norm = static(nn.BatchNorm1d(2))
    nn.init.constant_(norm.bias, 3.0)
    with batch_form(node_mask=torch.tensor([True, True, False])):
        out = norm(torch.tensor([[1.0, 2.0], [3.0, 4.0], [1e30, -1e30]]))
    assert out[2].tolist() == [3.0, 3.0]


def test_a_batch_of_filler_changes_no_statistics():
    norm = static(nn.BatchNorm1d(2))
    before = copy.deepcopy(norm.state_dict())
    with batch_form(node_mask=torch.zeros(5, dtype=torch.bool)):
        out = norm(torch.randn(5, 2))
    assert out.isfinite().all()
    for name, value in norm.state_dict().items():
        assert torch.equal(value, before[name])


def test_masks_are_told_apart_by_their_length():
    norm = static(nn.BatchNorm1d(2))
    x = torch.randn(4, 2)
    edges = torch.tensor([True, True, True, False])
    with batch_form(node_mask=torch.ones(9, dtype=torch.bool), edge_mask=edges):
        out = norm(x)
    torch.testing.assert_close(out[:3], nn.BatchNorm1d(2)(x[:3]))


def test_masks_of_equal_length_are_ambiguous():
    norm = static(nn.BatchNorm1d(2))
    masks = {"node_mask": torch.ones(4, dtype=torch.bool), "edge_mask": torch.ones(4) > 0}
    with batch_form(**masks), pytest.raises(ArgumentError, match="could be node or edge"):
        norm(torch.randn(4, 2))


def test_rows_that_fit_no_mask_are_an_error():
    norm = static(nn.BatchNorm1d(2))
    with (
        batch_form(node_mask=torch.ones(4, dtype=torch.bool)),
        pytest.raises(ArgumentError, match="BatchNorm got 5 rows"),
    ):
        norm(torch.randn(5, 2))


def test_evaluation_needs_no_mask():
    norm = static(nn.BatchNorm1d(2)).eval()
    x = torch.randn(5, 2)
    with batch_form(node_mask=torch.ones(4, dtype=torch.bool)):
        torch.testing.assert_close(norm(x), nn.BatchNorm1d(2).eval()(x))


class Normed(nn.Module):
    def __init__(self, norm: nn.Module):
        super().__init__()
        self.norms = nn.ModuleList([norm, copy.deepcopy(norm)])

    def forward(self, x: Tensor, node_mask: Tensor | None = None) -> Tensor:
        for norm in self.norms:
            x = norm(x)
        return x


X = torch.randn(ROWS, 4)


def test_an_unmasked_batch_norm_on_a_masked_batch_warns_once():
    with pytest.warns(UserWarning, match="make_static") as caught:
        inference_model(Normed(nn.BatchNorm1d(4)), CAPTURE)(X, MASK)
    assert len(caught) == 1
    assert "BatchNorm1d(4)" in str(caught[0].message)


def test_it_warns_once_padding_was_seen():
    _padding_seen.note_padding()
    with pytest.warns(UserWarning, match="9 rows of a padded batch"):
        inference_model(Normed(pyg.BatchNorm(4)), CAPTURE)(X)


def test_a_loader_of_fixed_size_batches_counts_as_padding_seen():
    graphs = [Data(x=torch.ones(2, 4), edge_index=torch.zeros(2, 1, dtype=torch.long))] * 3
    assert not _padding_seen.padding_seen()
    FixedSizeLoader(graphs, num_nodes=5)
    assert _padding_seen.padding_seen()


@pytest.mark.parametrize("case", ["full graph", "no graphs", "evaluation", "made static"])
def test_there_is_no_warning_where_none_is_due(case):
    module, args = Normed(nn.BatchNorm1d(4)), (X, MASK)
    if case == "full graph":
        module, args = Normed(pyg.BatchNorm(4)), (X,)
    elif case == "no graphs":
        _padding_seen.note_padding()
        args = (X,)
    elif case == "evaluation":
        module.eval()
    else:
        make_static(module, verbose=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        inference_model(module, CAPTURE)(*args)


WHOLE_BATCH = {
    "LayerNorm": lambda: pyg.LayerNorm(4),
    "GraphNorm": lambda: pyg.GraphNorm(4),
    "PairNorm": lambda: pyg.PairNorm(),
    "MeanSubtractionNorm": lambda: pyg.MeanSubtractionNorm(),
    "InstanceNorm": lambda: pyg.InstanceNorm(4, track_running_stats=True),
}


@pytest.mark.parametrize("name", WHOLE_BATCH)
def test_norms_without_a_batch_vector_leave_filler_out(name):
    norm = WHOLE_BATCH[name]()
    x = X.clone()
    x[REAL:] = 1e4
    module = Normed(norm)
    expected = copy.deepcopy(module)(x[:REAL])
    program = inference_model(make_static(module, verbose=False), CAPTURE)
    torch.testing.assert_close(program(x, MASK)[:REAL], expected, atol=1e-5, rtol=1e-5)


class Checkpointed(Normed):
    def __init__(self):
        super().__init__(nn.BatchNorm1d(4))
        self.lin = nn.Linear(4, 4)

    def forward(self, x: Tensor, node_mask: Tensor | None = None) -> Tensor:
        def block(x: Tensor) -> Tensor:
            return self.norms[0](self.lin(x)).tanh()

        return checkpoint(block, x, use_reentrant=False)


@pytest.mark.parametrize("backend", ["eager", "capture"])
def test_a_checkpointed_block_sees_the_masks_again_in_backward(backend):
    module = make_static(Checkpointed(), verbose=False)
    plain = copy.deepcopy(module)
    plain(X[:REAL]).square().sum().backward()

    class WithGradient(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = module

        def forward(self, x: Tensor, node_mask: Tensor) -> Tensor:
            loss = self.inner(x, node_mask)[:REAL].square().sum()
            return torch.autograd.grad(loss, self.inner.lin.weight)[0]

    options = Options(backend=backend, show_progress=False)
    got = inference_model(WithGradient(), options)(X, MASK)
    torch.testing.assert_close(got, plain.lin.weight.grad, atol=1e-5, rtol=1e-5)
