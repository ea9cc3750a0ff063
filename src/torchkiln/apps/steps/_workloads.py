"""Small training programs of four kinds, each with its data and optimiser."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own habit
from torch import Tensor, nn


@dataclass(frozen=True, slots=True)
class Workload:
    """A model whose forward returns its loss last, example inputs, and an optimiser."""

    name: str
    module: nn.Module
    inputs: tuple[Tensor, ...]
    make_optimizer: Callable[..., torch.optim.Optimizer]


class FashionCNN(nn.Module):
    """The convolutional classifier of the Fashion-MNIST seed."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 5, kernel_size=3),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(5, 12, kernel_size=5),
            nn.ReLU(),
            nn.GroupNorm(3, 12),
            nn.Flatten(),
        )
        self.classifier = nn.Sequential(nn.Linear(972, 100), nn.ReLU(), nn.Linear(100, 10))

    def forward(self, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        logits = self.classifier(self.features(images))
        return logits, F.cross_entropy(logits, labels)


class NodeClassifier(nn.Module):
    """One graph convolution over a citation graph, as in the Cora seed."""

    def __init__(self, num_features: int, num_classes: int) -> None:
        super().__init__()
        from torch_geometric.nn import GCNConv

        self.conv = GCNConv(num_features, num_classes, add_self_loops=False)

    def forward(self, x: Tensor, edge_index: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        x = F.dropout(x, p=0.5, training=self.training)
        x = self.conv(x, edge_index).relu()
        return x, F.cross_entropy(x, y)


class DeepMLP(nn.Module):
    """Equal linear layers with ReLU between them."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        layers = [layer for _ in range(depth) for layer in (nn.Linear(width, width), nn.ReLU())]
        self.layers = nn.Sequential(*layers[:-1])

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        out = self.layers(x)
        return out, F.mse_loss(out, y)


class SequenceModel(nn.Module):
    """A stack of transformer encoder layers."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        out = self.encoder(x)
        return out, F.mse_loss(out, y)


def _cnn() -> Workload:
    images, labels = torch.rand(16, 1, 28, 28), torch.randint(0, 10, (16,))
    return Workload(
        "CNN (Fashion-MNIST seed, batch 16)",
        FashionCNN(),
        (images, labels),
        lambda params, **extra: torch.optim.SGD(params, lr=0.001, momentum=0.9, **extra),
    )


def _adam(params: Any, **extra: Any) -> torch.optim.Optimizer:
    return torch.optim.Adam(params, lr=0.001, **extra)


def _gcn() -> Workload:
    # The sizes of Cora: 2,708 papers, 1,433 words, 10,556 citations, 7 topics.
    x = (torch.rand(2708, 1433) < 0.0127).float()
    x = x / x.sum(dim=1, keepdim=True).clamp(min=1)
    edge_index = torch.randint(0, 2708, (2, 10556))
    y = torch.randint(0, 7, (2708,))
    return Workload("GCN (size of Cora)", NodeClassifier(1433, 7), (x, edge_index, y), _adam)


def _mlp() -> Workload:
    data = torch.randn(128, 256)
    return Workload("MLP (20 x 256, batch 128)", DeepMLP(256, 20), (data, torch.tanh(data)), _adam)


def _transformer() -> Workload:
    data = torch.randn(16, 64, 128)
    return Workload(
        "Transformer (4 layers, d=128, 16 x 64)",
        SequenceModel(128, 4),
        (data, data.roll(1, 1)),
        _adam,
    )


WORKLOADS: dict[str, Callable[[], Workload]] = {
    "cnn": _cnn,
    "gcn": _gcn,
    "mlp": _mlp,
    "transformer": _transformer,
}
