"""One small native program: python _tiny_native.py CACHE prints compilations and losses."""

from __future__ import annotations

import json
import sys

import torch
from torch import nn

from torchkiln import Options, training_model


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(64, 64)

    def forward(self, x, y):
        out = torch.tanh(self.layer(x))
        return out, nn.functional.mse_loss(out, y)


def batch(seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Large enough that native code shares it between threads."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(4096, 64, generator=generator), torch.randn(4096, 64, generator=generator)


def make_program(cache_dir, seed: int = 0, backend: str = "inductor"):
    torch.manual_seed(seed)
    model = Model()
    options = Options(cache_dir=cache_dir, backend=backend, show_progress=False)
    return training_model(model, options, torch.optim.Adam(model.parameters()))


def losses_of(program, steps: int = 3, seed: int = 0) -> list[float]:
    x, y = batch(seed)
    return [float(program(x, y)[1]) for _ in range(steps)]


if __name__ == "__main__":
    program = make_program(sys.argv[1])
    print(json.dumps({"losses": losses_of(program), "compiles": program.num_compiles}))
