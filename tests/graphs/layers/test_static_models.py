"""Whole models after `make_static` against eager PyG: norms beside ghosts, two batches, errors."""

from __future__ import annotations

import copy

import pytest
import torch
import torch_geometric.nn as pyg
from torch import Tensor, nn
from torch_geometric.data import Batch, Data

from torchkiln.core import ArgumentError, Options
from torchkiln.graphs import BatchSpec, batch_form, make_static, pad_batch, provide_point_layers
from torchkiln.runtime import identity_loss, inference_model, training_model

F, WIDTH, STEPS = 6, 8, 3
SPEC = BatchSpec(40, 110, 6)
CAPTURE = Options(backend="capture", show_progress=False)


@pytest.fixture(autouse=True)
def _point_layers():
    provide_point_layers()


def graphs(count: int = 4 * STEPS, scale: float = 0.5) -> list[Data]:
    """Return graphs with self-loops, some smaller than the number of neighbours asked for."""
    g = torch.Generator().manual_seed(0)
    made = []
    for _ in range(count):
        nodes = int(torch.randint(4, 9, (1,), generator=g))
        made.append(
            Data(
                x=scale * (torch.randn(nodes, F, generator=g) + 1),
                edge_index=torch.randint(0, nodes, (2, 3 * nodes), generator=g),
                pos=torch.randn(nodes, 3, generator=g),
                z=torch.randint(1, 9, (nodes,), generator=g),
                y=torch.randn(1, generator=g),
            )
        )
    return made


def batches(scale: float = 0.5) -> tuple[list[Batch], list[Batch]]:
    """Return the same batches without and with filler."""
    made = graphs(scale=scale)
    parts = [made[4 * step : 4 * step + 4] for step in range(STEPS)]
    return [Batch.from_data_list(part) for part in parts], [pad_batch(p, SPEC) for p in parts]


class Regressor(nn.Module):
    """A body that reads a batch as `call` says, mean pooling without a size, and a masked loss."""

    def __init__(self, body: nn.Module, call):
        super().__init__()
        self.body, self.call = body, call
        self.head = nn.LazyLinear(1)

    def forward(self, b):
        out = self.head(pyg.global_mean_pool(self.call(self.body, b), b.batch)).squeeze(-1)
        real = b.graph_mask if "graph_mask" in b else torch.ones_like(out, dtype=torch.bool)
        error = torch.where(real, out - b.y, 0.0)
        return identity_loss(error.square().sum() / real.sum(), reduction="none")


def points(body: nn.Module, b) -> Tensor:
    return body(b.x, b.pos, b.edge_index)


def nodes_only(body: nn.Module, b) -> Tensor:
    return body(b.x)


class SchNetNodes(pyg.SchNet):
    """SchNet up to its node embeddings: the energy of untrained weights makes SGD diverge."""

    def forward(self, z, pos, batch):
        h = self.embedding(z)
        edge_index, distance = self.interaction_graph(pos, batch)
        for interaction in self.interactions:
            h = h + interaction(h, edge_index, distance, self.distance_expansion(distance))
        return h


MODELS = {
    "PointNetConv(local)": lambda: Regressor(pyg.PointNetConv(pyg.MLP([F + 3, 16, 8])), points),
    "PointNetConv(global)": lambda: Regressor(
        pyg.PointNetConv(nn.Linear(F + 3, 8), pyg.MLP([8, 16, 8])), points
    ),
    "PointNetConv(LayerNorm)": lambda: Regressor(
        pyg.PointNetConv(pyg.MLP([F + 3, 16, 8], norm="LayerNorm")), points
    ),
    "PointTransformerConv": lambda: Regressor(
        pyg.PointTransformerConv(F, 8, pyg.MLP([3, 16, 8]), pyg.MLP([8, 16, 8])), points
    ),
    "DynamicEdgeConv": lambda: Regressor(
        pyg.DynamicEdgeConv(pyg.MLP([2 * F, 16, 8]), 6), lambda m, b: m(b.x, b.batch)
    ),
    "EdgeConv(knn_graph)": lambda: Regressor(
        pyg.EdgeConv(pyg.MLP([2 * F, 16, 8])),
        lambda m, b: m(b.x, pyg.knn_graph(b.x, 5, b.batch)),
    ),
    "SchNet": lambda: Regressor(
        SchNetNodes(16, 16, 2, 10, cutoff=2.0), lambda m, b: m(b.z, b.pos, b.batch)
    ),
}


def plainly_trained(net: nn.Module, plain: list[Batch]) -> list[Tensor]:
    optimizer = torch.optim.SGD(net.parameters(), lr=0.02)
    losses = []
    for batch in plain:
        optimizer.zero_grad()
        loss = net(batch)
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return losses


def assert_trains_alike(net: nn.Module, plain: list[Batch], given: list[Batch]) -> None:
    net.eval()(plain[0])
    net.train()
    static = make_static(copy.deepcopy(net), SPEC, verbose=False)
    losses = plainly_trained(net, plain)
    program = training_model(static, CAPTURE, torch.optim.SGD(static.parameters(), lr=0.02))
    got = [program(batch) for batch in given]
    torch.testing.assert_close(got, losses, atol=1e-4, rtol=1e-4)
    expected = net.state_dict()
    for name, value in static.state_dict().items():
        torch.testing.assert_close(value, expected[name], atol=1e-4, rtol=1e-4, msg=name)


@pytest.mark.parametrize("name", MODELS)
def test_norms_inside_layers_count_neither_filler_nor_ghosts(name):
    torch.manual_seed(0)
    assert_trains_alike(MODELS[name](), *batches())


@pytest.mark.parametrize("name", MODELS)
def test_outside_programs_norms_inside_layers_do_as_before(name):
    torch.manual_seed(0)
    net = MODELS[name]()
    plain, padded = batches()
    net.eval()(plain[0])
    net.train()
    static = make_static(copy.deepcopy(net), SPEC, verbose=False)
    # Other norms than BatchNorm, and the rows that knn_graph drops, are masked in programs only.
    on_padded = None if "knn" in name or "LayerNorm" in name else copy.deepcopy(static)
    losses = plainly_trained(net, plain)
    torch.testing.assert_close(plainly_trained(static, plain), losses)
    torch.testing.assert_close(static.state_dict(), net.state_dict())
    if on_padded is not None:
        torch.testing.assert_close(plainly_trained(on_padded, padded), losses, atol=1e-4, rtol=1e-4)


def test_layer_norm_without_batch_keeps_its_epsilon():
    torch.manual_seed(0)
    net = Regressor(nn.Sequential(pyg.LayerNorm(F), nn.Linear(F, WIDTH)), nodes_only)
    assert_trains_alike(net, *batches(scale=1e-3))


class Siamese(nn.Module):
    def __init__(self, names_masks: bool):
        super().__init__()
        self.conv, self.norm = pyg.GCNConv(F, WIDTH), pyg.BatchNorm(WIDTH)
        self.names_masks = names_masks

    def embed(self, b):
        out = pyg.global_mean_pool(self.norm(self.conv(b.x, b.edge_index)).relu(), b.batch)
        return (
            torch.where(b.graph_mask[:, None], out, 0.0).sum() if "graph_mask" in b else out.sum()
        )

    def forward(self, a, b):
        if not self.names_masks:
            return self.embed(a) - self.embed(b)
        with batch_form(node_mask=a.node_mask, graph_mask=a.graph_mask):
            first = self.embed(a)
        with batch_form(node_mask=b.node_mask, graph_mask=b.graph_mask):
            return first - self.embed(b)


def test_masks_of_two_batches_do_not_stand_for_each_other():
    torch.manual_seed(0)
    net, made = Siamese(names_masks=False), graphs()
    padded = pad_batch(made[:4], SPEC), pad_batch(made[4:6], SPEC)
    static = make_static(copy.deepcopy(net), SPEC, verbose=False)
    with pytest.raises(ArgumentError, match=r"node \(batch 1\) or node \(batch 2\).*batch_form"):
        inference_model(static, CAPTURE)(*padded)
    static.names_masks = True
    expected = net(Batch.from_data_list(made[:4]), Batch.from_data_list(made[4:6]))
    got = inference_model(static, CAPTURE)(*padded)
    torch.testing.assert_close(got, expected.detach(), atol=1e-4, rtol=1e-4)


class Pool(nn.Module):
    def forward(self, x, batch):
        return pyg.global_add_pool(x, batch)


def test_a_second_make_static_changes_the_sizes():
    model = make_static(make_static(Pool(), num_graphs=4, verbose=False), SPEC, verbose=False)
    assert "6 graphs" in str(model.static_report)
    batch = pad_batch(graphs()[:4], SPEC)
    assert inference_model(model, CAPTURE)(batch.x, batch.batch).shape == (6, F)
    assert "nothing to change" in str(make_static(model, SPEC, verbose=False).static_report)


def test_an_error_inside_a_layer_leaves_it_as_it_was():
    class Boom(nn.Module):
        def forward(self, x):
            raise KeyError("boom")

    layer = make_static(pyg.PointNetConv(nn.Linear(F + 3, 8), Boom()), verbose=False)
    batch = Batch.from_data_list(graphs()[:4])
    with pytest.raises(KeyError, match="boom"):
        inference_model(layer, CAPTURE)(batch.x, batch.pos, batch.edge_index)
    assert layer.add_self_loops is True
    layer.global_nn = None
    plain = pyg.PointNetConv(layer.local_nn)
    expected = plain(batch.x, batch.pos, batch.edge_index)
    torch.testing.assert_close(layer(batch.x, batch.pos, batch.edge_index), expected)
