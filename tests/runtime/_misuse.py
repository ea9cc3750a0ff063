"""What the tests of bad input share: a small model, a batch for it, and programs."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own habit
from torch import Tensor, nn

from torchkiln.core import Options
from torchkiln.runtime import Program, training_model


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 2)
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x: Tensor, y: Tensor, scale: float = 1.0, *, extra: Any = None):
        if extra is not None:
            x = x + extra["shift"]
        out = self.layer(x) * scale
        return out, F.cross_entropy(out, y)


X, Y = torch.ones(4, 3), torch.tensor([0, 1, 0, 1])


def options(**settings: Any) -> Options:
    return Options(**{"backend": "capture", "show_progress": False, **settings})


def training(module: nn.Module | None = None, optimizer: Any = None, **settings: Any) -> Program:
    return training_model(module or Net(), options(**settings), optimizer)


def compiled(module: nn.Module | None = None, optimizer: Any = None, **settings: Any) -> Program:
    program = training(module, optimizer, **settings)
    program.compile(X, Y)
    return program
