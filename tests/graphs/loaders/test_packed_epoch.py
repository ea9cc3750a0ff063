"""Epochs of packed molecules through a 3-layer GIN: one compile, every molecule once."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch_geometric.data import Batch
from torch_geometric.nn import GIN, global_add_pool

from torchkiln import Options, identity_loss, training_model
from torchkiln.graphs import FixedSizeLoader

TOLERANCE = 1e-5


class Regressor(nn.Module):
    """Takes whole batches, and returns which molecules it saw."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body = GIN(11, 16, num_layers=3)
        self.head = nn.Linear(16, 1)

    def forward(self, batch):
        nodes = self.body(batch.x, batch.edge_index)
        out = self.head(global_add_pool(nodes, batch.batch, size=batch.num_graphs)).squeeze(-1)
        # A sum, so that the gradients of all batches add up to that of the whole dataset.
        loss = torch.where(batch.graph_mask, (out - batch.y).square(), 0.0).sum()
        return torch.where(batch.graph_mask, batch.idx, -1), identity_loss(loss, reduction="sum")


def loader_and_program(molecules, options, lr=1e-3, **kwargs):
    loader = FixedSizeLoader(molecules, num_nodes=160, shuffle=True, options=options, **kwargs)
    model = Regressor()
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    return loader, training_model(model, options, optimizer), model


@pytest.mark.parametrize("device_iterations", [1, 3])
def test_two_epochs_visit_each_molecule_once_and_compile_once(molecules, device_iterations):
    options = Options(
        backend="capture",
        device_iterations=device_iterations,
        output_mode="all",
        show_progress=False,
    )
    loader, program, _ = loader_and_program(molecules, options, lr=0.0)
    everything = sorted(int(graph.idx) for graph in molecules)
    orders = []
    for _ in range(2):
        seen = [idx for batch in loader for idx in program(batch)[0].tolist() if idx >= 0]
        assert sorted(seen) == everything
        orders.append(seen)
    assert orders[0] != orders[1]
    assert program.num_compiles == 1


def test_the_gradient_of_an_epoch_is_that_of_all_molecules_in_one_pyg_batch(molecules):
    num_packs = len(FixedSizeLoader(molecules, num_nodes=160, shuffle=True))
    # One update from all packs: the sum over an epoch. SGD with rate 1 subtracts the gradient.
    options = Options(
        backend="capture", gradient_accumulation=num_packs, reduction="sum", show_progress=False
    )
    loader, program, model = loader_and_program(molecules, options, lr=1.0)
    before = [parameter.detach().clone() for parameter in model.parameters()]
    [batch] = list(loader)
    program(batch)
    found = [old - new.detach() for old, new in zip(before, model.parameters(), strict=True)]

    whole = Batch.from_data_list(molecules)
    whole.graph_mask = torch.ones(len(molecules), dtype=torch.bool)
    reference = Regressor()
    _, loss = reference(whole)
    wanted = torch.autograd.grad(loss, list(reference.parameters()))
    scale = max(gradient.abs().max() for gradient in wanted)
    for mine, theirs in zip(found, wanted, strict=True):
        torch.testing.assert_close(mine / scale, theirs / scale, rtol=TOLERANCE, atol=TOLERANCE)
