"""Small modules that compute their own loss, each with a source of batches."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own habit
from torch import Tensor, nn
from torch_geometric.nn import GATConv, GCNConv


def vectors(rows: int = 4, columns: int = 6) -> Tensor:
    """Return the same random rows every time."""
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(0))


def labels(rows: int = 4, classes: int = 3) -> Tensor:
    return torch.arange(rows) % classes


class MLP(nn.Module):
    def __init__(self, bias: bool = True) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(6, 8, bias=bias), nn.Tanh(), nn.Linear(8, 3))

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        out = self.layers(x)
        return out, F.cross_entropy(out, y)


class ConvNet(nn.Module):
    """Convolution, BatchNorm, dropout of probability `p`, a linear head."""

    def __init__(self, p: float = 0.0) -> None:
        super().__init__()
        # A bias right before BatchNorm has a gradient of pure rounding noise: none here.
        self.conv = nn.Conv2d(2, 4, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(4)
        self.dropout = nn.Dropout(p)
        self.head = nn.Linear(4 * 3 * 3, 3)

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        hidden = F.max_pool2d(F.relu(self.norm(self.conv(x))), 2)
        out = self.head(self.dropout(hidden.flatten(1)))
        return out, F.cross_entropy(out, y)


class GraphNet(nn.Module):
    """Two layers of message passing; edges come as rows, so that batches cut along dim 0."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        if kind == "gcn":
            self.first = GCNConv(5, 8, add_self_loops=False)
            self.second = GCNConv(8, 3, add_self_loops=False)
        else:
            self.first = GATConv(5, 4, heads=2, add_self_loops=False)
            self.second = GATConv(8, 3, add_self_loops=False)

    def forward(self, x: Tensor, edges: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        edge_index = edges.t()
        out = self.second(F.elu(self.first(x, edge_index)), edge_index)
        return out, F.cross_entropy(out, y)


class SequenceNet(nn.Module):
    def __init__(self, kind: type[nn.RNNBase] = nn.LSTM) -> None:
        super().__init__()
        self.recurrent = kind(4, 6, batch_first=True)
        self.head = nn.Linear(6, 3)

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        hidden, _ = self.recurrent(x)
        out = self.head(hidden[:, -1])
        return out, F.cross_entropy(out, y)


class TransformerNet(nn.Module):
    def __init__(self, p: float = 0.0) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(4, 2, 8, dropout=p, batch_first=True)
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        out = self.head(self.layer(x).mean(1))
        return out, F.cross_entropy(out, y)


@dataclass(frozen=True)
class Case:
    """A module, and batches of `count` micro-batches for it."""

    make: Callable[[], nn.Module]
    batch: Callable[[torch.Generator, int], tuple[Tensor, ...]]


def _labels(rng: torch.Generator, size: int) -> Tensor:
    return torch.randint(0, 3, (size,), generator=rng)


def _vectors(rng: torch.Generator, count: int) -> tuple[Tensor, ...]:
    return torch.randn(4 * count, 6, generator=rng), _labels(rng, 4 * count)


def _images(rng: torch.Generator, count: int) -> tuple[Tensor, ...]:
    return torch.randn(4 * count, 2, 6, 6, generator=rng), _labels(rng, 4 * count)


def _sequences(rng: torch.Generator, count: int) -> tuple[Tensor, ...]:
    return torch.randn(4 * count, 5, 4, generator=rng), _labels(rng, 4 * count)


def _graphs(rng: torch.Generator, count: int) -> tuple[Tensor, ...]:
    x = torch.randn(6 * count, 5, generator=rng)
    loops = torch.arange(6).repeat(count)[:, None].expand(-1, 2)
    random = torch.randint(0, 6, (6 * count, 2), generator=rng)
    edges = torch.cat([loops.view(count, 6, 2), random.view(count, 6, 2)], 1).reshape(-1, 2)
    return x, edges, _labels(rng, 6 * count)


CASES = {
    "mlp": Case(MLP, _vectors),
    "cnn": Case(ConvNet, _images),
    "dropout": Case(lambda: ConvNet(0.3), _images),
    "gcn": Case(lambda: GraphNet("gcn"), _graphs),
    "gat": Case(lambda: GraphNet("gat"), _graphs),
    "lstm": Case(SequenceNet, _sequences),
    "transformer": Case(TransformerNet, _sequences),
}
