"""A linear model whose loss is chosen by the test, and a batch for it."""

from __future__ import annotations

import torch
from torch import nn

from torchkiln import Options

CAPTURE = Options(backend="capture", show_progress=False)


def batch():
    generator = torch.Generator().manual_seed(0)
    return torch.randn(8, 3, generator=generator), torch.randn(8, 1, generator=generator)


class LinearLoss(nn.Module):
    """A linear model whose outputs are chosen by a function of (mse per sample, weights)."""

    def __init__(self, outputs, reduction="mean"):
        super().__init__()
        self.layer = nn.Linear(3, 1)
        self.outputs = outputs
        self.reduction = reduction

    def forward(self, x, y):
        loss = nn.functional.mse_loss(self.layer(x), y, reduction=self.reduction)
        return self.outputs(loss, self.layer.weight)


def plain(loss, weight):
    return loss
