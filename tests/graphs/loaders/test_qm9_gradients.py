"""Gradients of packed batches on all of QM9, against PyG's own batches."""

from __future__ import annotations

import importlib.util

import pytest
import torch
from torch import nn
from torch_geometric.data import Batch
from torch_geometric.nn import GINEConv, global_add_pool

from torchkiln import Options, identity_loss, training_model
from torchkiln.graphs import FixedSizeLoader

NUM_MOLECULES = 130_831
# float32 sums over 2,000 atoms, in another order.
TOLERANCE = 1e-5


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = GINEConv(nn.Linear(11, 8), edge_dim=4)
        self.second = GINEConv(nn.Linear(8, 8), edge_dim=4)
        self.head = nn.Linear(8, 1)

    def forward(self, x, edge_index, edge_attr, batch, y, graph_mask):
        nodes = self.second(self.first(x, edge_index, edge_attr).tanh(), edge_index, edge_attr)
        out = self.head(global_add_pool(nodes, batch, size=graph_mask.shape[0])).squeeze(-1)
        error = torch.where(graph_mask, out - y[:, 4], 0.0)
        return identity_loss(error.square().sum() / graph_mask.sum().clamp(min=1), reduction="mean")


def tensors(batch, mask):
    return batch.x, batch.edge_index, batch.edge_attr, batch.batch, batch.y, mask


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_every_pack_has_the_gradients_of_the_same_molecules_in_pyg(tmp_path):
    if importlib.util.find_spec("qm9pack") is None:
        pytest.skip("needs qm9pack, the source of QM9 (pip install qm9pack)")
    from torch_geometric.datasets import QM9

    from torchkiln.datasets import write_qm9_root

    dataset = QM9(str(write_qm9_root(tmp_path, progress=False)))
    loader = FixedSizeLoader(dataset, num_nodes=2000, shuffle=True)
    model, plain = Model(), Model()
    start = {name: value.clone() for name, value in model.state_dict().items()}
    # Plain SGD with rate 1 subtracts the gradient.
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    program = training_model(model, Options(backend="capture", show_progress=False), optimizer)
    plan, visited = loader.plan, 0
    for batch, indices in zip(loader, plan, strict=True):
        model.load_state_dict(start)
        loss = program(*tensors(batch, batch.graph_mask))
        whole = Batch.from_data_list([dataset[int(index)] for index in indices])
        wanted_loss = plain(*tensors(whole, torch.ones(len(indices), dtype=torch.bool)))
        wanted = torch.autograd.grad(wanted_loss, list(plain.parameters()))
        torch.testing.assert_close(loss, wanted_loss.detach(), rtol=TOLERANCE, atol=TOLERANCE)
        scale = max(gradient.abs().max() for gradient in wanted)
        for (name, value), gradient in zip(model.named_parameters(), wanted, strict=True):
            found = (start[name] - value.detach()) / scale
            torch.testing.assert_close(found, gradient / scale, rtol=TOLERANCE, atol=TOLERANCE)
        visited += int(batch.graph_mask.sum())
    assert visited == NUM_MOLECULES
    assert program.num_compiles == 1
