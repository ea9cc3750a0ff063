"""Tables with -1 in layers that do not mask them."""

from __future__ import annotations

import warnings

import pytest
import torch
import torch_geometric.nn as pyg
from torch import nn

from torchkiln.core import Options
from torchkiln.graphs import route_missing
from torchkiln.graphs.layers import knn_graph
from torchkiln.runtime import inference_model

CAPTURE = Options(backend="capture", show_progress=False)
X = torch.randn(6, 4)


class Searching(nn.Module):
    """Neighbours of three, in the graphs that `batch` tells."""

    def __init__(self, layer: nn.Module, *, route: bool = False) -> None:
        super().__init__()
        self.layer, self.route = layer, route

    def forward(self, x, batch):
        edge_index = knn_graph(x, 3, batch)
        if self.route:
            edge_index = route_missing(edge_index, len(x) - 1)
        return self.layer(x, edge_index)


def test_a_layer_that_would_read_minus_one_as_a_node_warns():
    program = inference_model(Searching(pyg.SAGEConv(4, 4)), CAPTURE)
    with pytest.warns(UserWarning, match=r"SAGEConv .*route_missing"):
        program(X, torch.zeros(6, dtype=torch.long))


@pytest.mark.parametrize(
    "model",
    [
        Searching(pyg.SAGEConv(4, 4), route=True),
        Searching(pyg.EdgeConv(nn.Linear(8, 4))),
    ],
    ids=["routed", "masking"],
)
def test_layers_that_mask_and_tables_that_were_routed_are_silent(model):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        inference_model(model, CAPTURE)(X, torch.tensor([0, 0, 0, 0, 1, 1]))
