"""A loss that counts filler is told so, once; a loss that leaves it out is left in peace."""

from __future__ import annotations

import warnings

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - torch's own habit
from torch import nn
from torch_geometric.data import Data, HeteroData
from torch_geometric.nn import GCNConv, GraphConv, global_add_pool

from torchkiln import Options, inference_model, training_model
from torchkiln.graphs import (
    BatchSpec,
    FixedSizeLoader,
    MaskNames,
    PadValues,
    make_static,
    masked_cross_entropy,
    masked_mean,
    masked_mse_loss,
    pad_batch,
)

CAPTURE = Options(backend="capture", show_progress=False)
CLASSES = 3
WARNING = "counts filler"


def graph(index: int) -> Data:
    nodes = 3 + index % 4
    ring = torch.arange(nodes)
    return Data(
        x=torch.randn(nodes, 5),
        edge_index=torch.stack([ring.repeat(2), torch.cat([ring.roll(1), ring.roll(-1)])]),
        y=torch.tensor([index % CLASSES]),
        energy=torch.randn(1),
        label=torch.arange(nodes) % CLASSES,
        train_mask=torch.rand(nodes) > 0.5,
        weight=torch.rand(1) + 0.5,
    )


GRAPHS = [graph(index) for index in range(20)]


def batches(options=CAPTURE, **settings):
    return FixedSizeLoader(GRAPHS, num_nodes=24, options=options, **settings)


class Model(nn.Module):
    """A usual model of PyG with a loss of its own."""

    def __init__(self, loss, *, norm=False):
        super().__init__()
        self.conv = GraphConv(5, 8)
        self.norm = nn.BatchNorm1d(8) if norm else nn.Identity()
        self.head = nn.Linear(8, CLASSES)
        self.loss = loss

    def nodes(self, x, edge_index):
        return self.head(self.norm(self.conv(x, edge_index).relu()))

    def forward(self, batch):
        out = self.nodes(batch.x, batch.edge_index)
        return self.loss(out, global_add_pool(out, batch.batch, size=batch.num_graphs), batch)


def said(module, *args, options=CAPTURE, **kwargs):
    """Return the warnings of the first two calls of a training program."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        program = training_model(module, options)
        program(*args, **kwargs)
        program(*args, **kwargs)
    return [str(warning.message) for warning in caught]


UNMASKED = {
    "classes of graphs": (lambda n, g, b: F.cross_entropy(g, b.y), "masked_cross_entropy", "graph"),
    "energies": (lambda n, g, b: F.mse_loss(g[:, 0], b.energy), "masked_mse_loss", "graph"),
    "classes of nodes": (
        lambda n, g, b: F.cross_entropy(n, b.label),
        "masked_cross_entropy",
        "node",
    ),
    "absolute errors": (lambda n, g, b: F.l1_loss(g[:, 0], b.energy), "masked_l1_loss", "graph"),
}


@pytest.mark.parametrize("name", UNMASKED)
def test_a_loss_over_filler_is_told_once_with_the_rewrite(name):
    loss, function, mask = UNMASKED[name]
    (text,) = said(Model(loss), next(iter(batches())))
    assert WARNING in text
    assert f"torchkiln.graphs.{function}(input, target, batch.{mask}_mask)" in text


def test_the_warning_points_at_the_users_line():
    program = training_model(Model(lambda n, g, b: F.cross_entropy(g, b.y)), CAPTURE)
    with pytest.warns(UserWarning, match=WARNING) as caught:
        program(next(iter(batches())))
    assert caught[0].filename == __file__


def weighted(n, g, b):
    losses = F.cross_entropy(g, b.y, reduction="none")
    return (losses * b.graph_mask).sum() / b.graph_mask.sum().clamp(min=1)


SAFE = {
    "masked": lambda n, g, b: masked_cross_entropy(g, b.y, b.graph_mask),
    "masked nodes": lambda n, g, b: masked_cross_entropy(n, b.label, b.node_mask),
    "masked mean": lambda n, g, b: masked_mean(
        F.cross_entropy(g, b.y, reduction="none"), b.graph_mask
    ),
    "multiplied": weighted,
    "labels replaced": lambda n, g, b: F.cross_entropy(g, torch.where(b.graph_mask, b.y, -100)),
    "split mask": lambda n, g, b: F.cross_entropy(n, torch.where(b.train_mask, b.label, -100)),
    "last graphs cut off": lambda n, g, b: F.cross_entropy(g[:-1], b.y[:-1]),
    "labels compared": lambda n, g, b: masked_mean(
        F.cross_entropy(g, b.y.clamp(min=0), reduction="none"), b.y >= 0
    ),
    "weights that are 0 for filler": lambda n, g, b: (
        (F.mse_loss(g[:, 0], b.energy, reduction="none") * b.weight).sum() / b.weight.sum()
    ),
}


@pytest.mark.parametrize("name", SAFE)
def test_a_loss_that_leaves_filler_out_is_left_in_peace(name):
    assert said(Model(SAFE[name]), next(iter(batches()))) == []


def test_labels_padded_with_the_ignored_class_need_no_mask():
    pad = PadValues(attributes={"y": -100})
    batch = next(iter(batches(pad=pad)))
    assert said(Model(lambda n, g, b: F.cross_entropy(g, b.y)), batch) == []
    # Another class than that which the loss ignores does not help.
    (text,) = said(Model(lambda n, g, b: F.cross_entropy(g, b.y.clamp(min=0))), batch)
    assert WARNING in text


def test_a_mask_that_only_layers_use_does_not_mask_the_loss():
    model = make_static(Model(lambda n, g, b: F.cross_entropy(g, b.y), norm=True), verbose=False)
    (text,) = said(model, next(iter(batches())))
    assert WARNING in text
    model = make_static(Model(SAFE["masked"], norm=True), verbose=False)
    assert said(model, next(iter(batches()))) == []


class ByName(nn.Module):
    """Takes tensors instead of a batch, as many models of PyG do."""

    def __init__(self):
        super().__init__()
        self.conv = GCNConv(5, CLASSES, add_self_loops=False)

    def forward(self, x, edge_index, batch, y, weight=None, graph_mask=None):
        out = global_add_pool(self.conv(x, edge_index), batch, size=y.shape[0])
        if weight is None:
            return F.cross_entropy(out, y.long())
        return (F.cross_entropy(out, y.long(), reduction="none") * weight).sum() / weight.sum()


def test_a_batch_handed_over_without_its_masks_is_told_to_pass_them():
    batch = next(iter(batches()))
    (text,) = said(ByName(), batch.x, batch.edge_index, batch.batch, batch.y)
    assert "Pass batch.graph_mask to forward" in text
    (text,) = said(ByName(), batch.x, batch.edge_index, batch.batch, batch.y.float())
    assert WARNING in text


def test_tensors_without_pyg_and_combined_batches_are_told_alike():
    options = Options(backend="capture", show_progress=False, gradient_accumulation=2)
    batch = next(iter(batches(options=options, as_tensors=True)))
    tensors = (batch.x, batch.edge_index, batch.batch, batch.y)
    (text,) = said(ByName(), *tensors, options=options)
    assert WARNING in text
    (text,) = said(ByName(), *tensors, graph_mask=batch.graph_mask, options=options)
    assert "Pass" not in text


def test_weights_that_the_caller_made_may_be_masks():
    batch = next(iter(batches()))
    tensors = (batch.x, batch.edge_index, batch.batch, batch.y)
    assert said(ByName(), *tensors, batch.graph_mask.float()) == []
    assert said(ByName(), *tensors, batch.graph_mask / 3) == []


def test_labels_that_the_caller_masked_are_seen():
    batch = next(iter(batches()))
    y = torch.where(batch.graph_mask, batch.y, -100)
    assert said(ByName(), batch.x, batch.edge_index, batch.batch, y) == []


def test_batches_without_filler_are_left_in_peace():
    from torch_geometric.data import Batch

    assert said(Model(lambda n, g, b: F.cross_entropy(g, b.y)), Batch.from_data_list(GRAPHS)) == []
    # An attribute of the user's own that happens to have the name of a mask.
    own = [Data(**graph(i).to_dict(), node_mask=torch.ones(3 + i % 4).bool()) for i in range(3)]
    batch = Batch.from_data_list(own)
    assert said(Model(lambda n, g, b: F.cross_entropy(g, b.y)), batch) == []


def test_inference_is_left_in_peace():
    model = Model(lambda n, g, b: F.cross_entropy(g, b.y))
    inference_model(model, CAPTURE)(next(iter(batches())))


def test_padded_lists_are_told_whatever_their_masks_are_called():
    spec = BatchSpec(40, 60, 6)
    for masks in (True, False, MaskNames("a", "b", "c")):
        batch = pad_batch(GRAPHS[:5], spec, masks=masks)
        (text,) = said(Model(lambda n, g, b: F.cross_entropy(g, b.y)), batch)
        assert WARNING in text
    named = pad_batch(GRAPHS[:5], spec, masks=MaskNames("a", "b", "c"))
    assert said(Model(lambda n, g, b: masked_cross_entropy(g, b.y, b.c)), named) == []


def test_a_copied_batch_is_known_by_its_masks():
    batch = next(iter(batches())).clone()
    (text,) = said(Model(lambda n, g, b: F.cross_entropy(g, b.y)), batch)
    assert WARNING in text


class Hetero(nn.Module):
    def __init__(self, masked):
        super().__init__()
        self.linear = nn.Linear(4, 1)
        self.masked = masked

    def forward(self, data):
        out = self.linear(data["paper"].x)
        if self.masked:
            return masked_mse_loss(out, data["paper"].y, data["paper"].node_mask)
        return F.mse_loss(out, data["paper"].y)


def test_graphs_of_several_types_are_told_alike():
    data = HeteroData()
    data["paper"].x, data["paper"].y = torch.randn(5, 4), torch.randn(5, 1)
    data["author"].x = torch.randn(2, 4)
    ends = torch.tensor([[0, 1], [3, 4]])
    data["author", "writes", "paper"].edge_index = ends
    spec = BatchSpec({"paper": 12, "author": 6}, {("author", "writes", "paper"): 8}, 3)
    batch = pad_batch([data, data], spec)
    (text,) = said(Hetero(masked=False), batch)
    assert "batch.node_mask" in text
    assert said(Hetero(masked=True), batch) == []


class OfNodes(nn.Module):
    """Plain torch, which a program knows again without recording it."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(5, CLASSES)

    def forward(self, x, label):
        return F.cross_entropy(self.linear(x), label)


@pytest.mark.slow
@pytest.mark.inductor
def test_a_program_from_the_cache_is_told_as_well(tmp_path):
    options = Options(show_progress=False, cache_dir=tmp_path)
    batch = next(iter(batches(options=options)))
    for captures in (1, 0):
        program = training_model(OfNodes(), options)
        with pytest.warns(UserWarning, match=WARNING):
            program.compile(batch.x, batch.label)
        assert program.num_captures == captures
