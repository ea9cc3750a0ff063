"""PyG's SchNet on the edges of our batches, and ours beside it."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.nn.models import SchNet as PygSchNet

from torchkiln.datasets import MoleculeSet, directed_edges
from torchkiln.graphs import BatchSpec, PadValues, collate
from torchkiln.models import SchNet

SMALL = {"hidden_channels": 32, "num_filters": 24, "num_interactions": 3, "num_gaussians": 20}
# What the project promises against PyG, relative to the largest value.
OUTPUT_TOLERANCE = 1e-5
# Gradients are sums over all edges, in another order.
GRADIENT_TOLERANCE = 1e-4


class StoredEdges(nn.Module):
    """Stands in for PyG's search of neighbours, which needs compiled packages."""

    def __init__(self) -> None:
        super().__init__()
        self.edges: tuple[Tensor, Tensor] = (torch.empty(2, 0), torch.empty(0))

    def forward(self, pos: Tensor, batch: Tensor) -> tuple[Tensor, Tensor]:
        return self.edges


def make_both(seed: int = 0, **arguments: Any) -> tuple[SchNet, PygSchNet]:
    """Return our model and PyG's with the same random weights, biases included."""
    torch.manual_seed(seed)
    ours = SchNet(**arguments)
    for parameter in ours.parameters():
        if parameter.dim() == 1:  # initial biases are 0, which would hide a missing one
            nn.init.normal_(parameter, std=0.1)
    for name in ("filter", "num_knots"):
        arguments.pop(name, None)
    theirs = PygSchNet(interaction_graph=StoredEdges(), **arguments)
    theirs.load_state_dict(ours.state_dict())
    return ours, theirs


def as_pyg_batch(dataset: MoleculeSet, indices: list[int]) -> Any:
    """Return molecules as PyG batches them: no filler, one edge for each message."""
    from torch_geometric.data import Batch, Data

    graphs = []
    for index in indices:
        graph = dataset.store[index]
        edge_index, weight = directed_edges(graph.edge_index, graph.edge_weight, graph.edge_ways)
        begin, end = dataset.molecules.offsets[index : index + 2]
        pos = torch.tensor(dataset.molecules.pos[begin:end], dtype=torch.float32)
        graphs.append(
            Data(z=graph.z, edge_index=edge_index, edge_weight=weight, y=graph.y, pos=pos)
        )
    return Batch.from_data_list(graphs)


def run_pyg(model: PygSchNet, batch: Any) -> Tensor:
    model.interaction_graph.edges = (batch.edge_index, batch.edge_weight)
    return model(batch.z, batch.pos, batch.batch)


def as_fixed_batch(
    dataset: MoleculeSet, indices: list[int], *, pad: PadValues | None = None, room: float = 1.3
) -> Any:
    """Return the same molecules as one fixed-size batch with filler."""
    sizes = dataset.store[indices].sizes
    spec = BatchSpec(
        int(room * sizes["nodes"].sum()) + 2,
        int(room * sizes["edges"].sum()) + 2,
        len(indices) + 3,
    )
    return collate(dataset.store, indices, spec, pad=pad)


def run_ours(model: nn.Module, batch: Any, **others: Any) -> Tensor:
    """Return the predictions for all graphs of a fixed-size batch, [num_graphs, 1]."""
    return model(
        batch.z,
        batch.edge_index,
        batch.edge_weight,
        batch.batch,
        num_graphs=len(batch.graph_mask),
        edge_ways=batch.edge_ways,
        **others,
    )


def regression_arguments(batch: Any) -> tuple[Tensor, ...]:
    return (
        batch.z,
        batch.edge_index,
        batch.edge_weight,
        batch.edge_ways,
        batch.batch,
        batch.y,
        batch.graph_mask,
    )


def assert_close(got: Tensor, wanted: Tensor, tolerance: float, what: str = "") -> None:
    """Compare relative to the largest value."""
    scale = wanted.abs().max().clamp(min=1e-12)
    error = ((got - wanted).abs().max() / scale).item()
    assert error <= tolerance, f"{what} differs by {error:.1e} of its largest value"


def gradients(model: nn.Module, loss: Tensor) -> dict[str, Tensor]:
    named = dict(model.named_parameters())
    grads = torch.autograd.grad(loss, list(named.values()), allow_unused=True)
    return {
        name: torch.zeros_like(named[name]) if grad is None else grad
        for name, grad in zip(named, grads, strict=True)
    }


def in_double(model: nn.Module) -> nn.Module:
    return copy.deepcopy(model).double()
