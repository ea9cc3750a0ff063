"""Twelve PyG models with a read-out and a masked loss, written as a user would write them."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch_geometric.nn import (
    GAT,
    GCN,
    GIN,
    PNA,
    AttentionalAggregation,
    CGConv,
    EdgeCNN,
    GatedGraphConv,
    GATv2Conv,
    GENConv,
    GINEConv,
    GraphNorm,
    GraphSAGE,
    NNConv,
    ResGatedGraphConv,
    Set2Set,
    TransformerConv,
    global_add_pool,
    global_max_pool,
    global_mean_pool,
)

from torchkiln import identity_loss

HIDDEN = 8
NUM_NODE_FEATURES = 11
NUM_EDGE_FEATURES = 4


class GraphRegressor(nn.Module):
    """A body that embeds nodes, a read-out over graphs, and the mean squared error of real ones."""

    def __init__(self, body: nn.Module, readout: Callable[..., Tensor], width: int = HIDDEN):
        super().__init__()
        self.body = body
        self.readout = readout
        self.head = nn.Linear(width, 1)

    def forward(self, x, edge_index, edge_attr, batch, y, graph_mask):
        nodes = self.body(x, edge_index, edge_attr, batch, graph_mask.numel())
        graphs = self.readout(nodes, batch, graph_mask.numel())
        out = self.head(graphs).squeeze(-1)
        error = torch.where(graph_mask, out - y, 0.0)
        # The count of real graphs: filler neither adds to the sum nor to its divisor.
        loss = error.square().sum() / graph_mask.sum().clamp(min=1)
        return torch.where(graph_mask, out, 0.0), identity_loss(loss, reduction="mean")


class Plain(nn.Module):
    """A PyG basic model, which takes nodes and edges only."""

    def __init__(self, model: nn.Module):
        super().__init__()
        self.model = model

    def forward(self, x, edge_index, edge_attr, batch, num_graphs):
        return self.model(x, edge_index)


class WithEdges(nn.Module):
    """Two convolutions that read edge features."""

    def __init__(self, first: nn.Module, second: nn.Module):
        super().__init__()
        self.first, self.second = first, second

    def forward(self, x, edge_index, edge_attr, batch, num_graphs):
        x = torch.tanh(self.first(x, edge_index, edge_attr))
        return self.second(x, edge_index, edge_attr)


class Normed(nn.Module):
    """Convolution, norm over each graph, convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.first = GINEConv(nn.Linear(NUM_NODE_FEATURES, HIDDEN), edge_dim=NUM_EDGE_FEATURES)
        self.norm = GraphNorm(HIDDEN)
        self.second = GINEConv(nn.Linear(HIDDEN, HIDDEN), edge_dim=NUM_EDGE_FEATURES)

    def forward(self, x, edge_index, edge_attr, batch, num_graphs):
        x = self.norm(self.first(x, edge_index, edge_attr), batch, batch_size=num_graphs).relu()
        return self.second(x, edge_index, edge_attr)


def _sum(x, batch, num_graphs):
    return global_add_pool(x, batch, size=num_graphs)


def _mean(x, batch, num_graphs):
    return global_mean_pool(x, batch, size=num_graphs)


def _max(x, batch, num_graphs):
    return global_max_pool(x, batch, size=num_graphs)


class _Aggregated(nn.Module):
    def __init__(self, aggregation: nn.Module):
        super().__init__()
        self.aggregation = aggregation

    def forward(self, x, batch, num_graphs):
        return self.aggregation(x, batch, dim_size=num_graphs)


def _basic(kind: type[nn.Module], **kwargs: object) -> nn.Module:
    return Plain(kind(NUM_NODE_FEATURES, HIDDEN, num_layers=2, out_channels=HIDDEN, **kwargs))


def _nn_conv(width: int) -> nn.Module:
    return NNConv(width, HIDDEN, nn.Linear(NUM_EDGE_FEATURES, width * HIDDEN))


def _edge_pair(kind: type[nn.Module], **kwargs: object) -> nn.Module:
    options = {"edge_dim": NUM_EDGE_FEATURES, **kwargs}
    return WithEdges(kind(NUM_NODE_FEATURES, HIDDEN, **options), kind(HIDDEN, HIDDEN, **options))


def _degrees() -> Tensor:
    return torch.tensor([0, 40, 30, 20, 10], dtype=torch.long)


ZOO: dict[str, Callable[[], GraphRegressor]] = {
    "gcn": lambda: GraphRegressor(_basic(GCN, add_self_loops=False), _mean),
    "graph_sage": lambda: GraphRegressor(_basic(GraphSAGE), _max),
    "gin": lambda: GraphRegressor(_basic(GIN), _sum),
    "gat": lambda: GraphRegressor(_basic(GAT, add_self_loops=False), _mean),
    "pna": lambda: GraphRegressor(
        _basic(
            PNA,
            aggregators=["mean", "max", "min"],
            scalers=["identity", "amplification"],
            deg=_degrees(),
        ),
        _mean,
    ),
    "edge_cnn": lambda: GraphRegressor(_basic(EdgeCNN), _sum),
    "gatv2": lambda: GraphRegressor(_edge_pair(GATv2Conv, add_self_loops=False), _mean),
    "res_gated": lambda: GraphRegressor(_edge_pair(ResGatedGraphConv), _mean),
    "gated_graph": lambda: GraphRegressor(
        Plain(GatedGraphConv(NUM_NODE_FEATURES, num_layers=2)), _mean, NUM_NODE_FEATURES
    ),
    "gated_crystal": lambda: GraphRegressor(
        WithEdges(
            CGConv(NUM_NODE_FEATURES, NUM_EDGE_FEATURES),
            CGConv(NUM_NODE_FEATURES, NUM_EDGE_FEATURES),
        ),
        _Aggregated(Set2Set(NUM_NODE_FEATURES, processing_steps=2)),
        2 * NUM_NODE_FEATURES,
    ),
    "gine_graph_norm": lambda: GraphRegressor(Normed(), _sum),
    "sage_attention": lambda: GraphRegressor(
        _basic(GraphSAGE), _Aggregated(AttentionalAggregation(nn.Linear(HIDDEN, 1)))
    ),
}

# These multiply features with each other: filler of 1e30 overflows to infinity inside them, and
# infinity times a gradient of 0 is NaN. Moderate filler is inert.
PRODUCTS: dict[str, Callable[[], GraphRegressor]] = {
    "transformer": lambda: GraphRegressor(_edge_pair(TransformerConv), _mean),
    "gen": lambda: GraphRegressor(_edge_pair(GENConv, norm="layer"), _sum),
    "nn_conv": lambda: GraphRegressor(
        WithEdges(_nn_conv(NUM_NODE_FEATURES), _nn_conv(HIDDEN)), _mean
    ),
    "pna_std": lambda: GraphRegressor(
        _basic(PNA, aggregators=["mean", "std"], scalers=["identity"], deg=_degrees()), _mean
    ),
}
