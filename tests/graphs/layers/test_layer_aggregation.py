"""Message passing inside programs: through the aggregation kernels, with eager's numbers."""

from __future__ import annotations

import pytest
import torch
import torch_geometric.nn as pyg
from _layer_samples import F, plain_sample
from torch import nn

from torchkiln.core import Options
from torchkiln.graphs.layers import make_static
from torchkiln.ops import _scatter
from torchkiln.runtime import identity_loss, training_model
from torchkiln.runtime.capture import _capture

# float32 over three steps of training, in another order of summation.
TOLERANCE = 1e-5
DEGREES = torch.tensor([0, 2, 4, 4, 3, 2])
BODIES = {
    "GCN": lambda: pyg.GCN(F, 12, num_layers=2),
    "GIN": lambda: pyg.GIN(F, 12, num_layers=2),
    "SAGE": lambda: pyg.GraphSAGE(F, 12, num_layers=2),
    "GAT": lambda: pyg.GAT(F, 12, num_layers=2, heads=3),
    "PNA": lambda: pyg.PNA(
        F, 12, 2, aggregators=["mean", "min", "max", "std"], scalers=["amplification"], deg=DEGREES
    ),
}

pytestmark = pytest.mark.skipif(not _scatter.has_scatter_kernels(), reason="no C++ compiler")


class Model(nn.Module):
    def __init__(self, body):
        super().__init__()
        self.body = body
        self.head = nn.Linear(12, 1)

    def forward(self, x, edge_index, batch):
        graphs = pyg.global_mean_pool(self.body(x, edge_index), batch, size=3)
        return identity_loss(self.head(graphs).square().mean(), reduction="mean")


def train(kind, backend):
    """Return losses and final weights of three steps."""
    torch.manual_seed(0)
    model = make_static(Model(BODIES[kind]()), num_graphs=3, verbose=False)
    options = Options(backend=backend, show_progress=False)
    program = training_model(model, options, torch.optim.SGD(model.parameters(), lr=0.05))
    sample = plain_sample()
    losses = [program(sample.x, sample.edge_index, sample.batch) for _ in range(3)]
    return torch.stack(losses).flatten(), [p.detach().clone() for p in model.parameters()]


@pytest.mark.parametrize("kind", BODIES)
def test_training_gives_eagers_numbers_without_a_scatter(kind, monkeypatch):
    graphs = []

    def rewrite(graph, original=_capture.aggregate_natively):
        original(graph)
        graphs.append(graph)

    monkeypatch.setattr(_capture, "aggregate_natively", rewrite)
    losses, weights = train(kind, "capture")
    expected_losses, expected_weights = train(kind, "eager")
    torch.testing.assert_close(losses, expected_losses, atol=TOLERANCE, rtol=TOLERANCE)
    torch.testing.assert_close(weights, expected_weights, atol=TOLERANCE, rtol=TOLERANCE)
    names = {str(node.target) for graph in graphs for node in graph.graph.nodes}
    assert "torchkiln.scatter_sum.default" in names
    assert not [name for name in names if "scatter_add" in name or "scatter_reduce" in name]
    assert not [name for name in names if "index_add" in name]
