"""Half-precision weights trained by plain PyTorch with float32 moments: programs must equal it."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own habit
from torch import Tensor, nn

from torchkiln.runtime import LAMB

HALVES = {"float16": torch.float16, "bfloat16": torch.bfloat16}


class Regression(nn.Module):
    """A small MLP that learns the sine of a sum."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 1))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return F.mse_loss(self.layers(x), y)


def regression(dtype: torch.dtype) -> Regression:
    torch.manual_seed(1)
    return Regression().to(dtype)


def batch(dtype: torch.dtype, seed: int = 0, rows: int = 32) -> tuple[Tensor, Tensor]:
    x = torch.randn(rows, 6, generator=torch.Generator().manual_seed(seed))
    return x.to(dtype), x.sum(1, keepdim=True).sin().to(dtype)


class TfRMSprop(torch.optim.Optimizer):
    """TensorFlow's RMSprop: eps under the root, the learning rate inside of the momentum."""

    def __init__(self, params: Iterable[Any], lr: float, momentum: float) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for param in group["params"]:
                state = self.state[param]
                if not state:
                    state["square"] = torch.ones_like(param)
                    state["move"] = torch.zeros_like(param)
                state["square"].mul_(0.99).addcmul_(param.grad, param.grad, value=0.01)
                scaled = group["lr"] * param.grad / (state["square"] + 1e-8).sqrt()
                state["move"].mul_(group["momentum"]).add_(scaled)
                param.sub_(state["move"])


def tf_variant(params: Iterable[Any]) -> torch.optim.Optimizer:
    optimizer = torch.optim.RMSprop(params, lr=0.01, momentum=0.5)
    optimizer.use_tf_variant = True  # type: ignore[attr-defined]
    return optimizer


Make = Callable[[Iterable[Any]], torch.optim.Optimizer]

OPTIMIZERS: dict[str, Make] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.05),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.02, momentum=0.9, nesterov=True),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01, weight_decay=0.01),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01),
    "amsgrad": lambda p: torch.optim.Adam(p, lr=0.01, amsgrad=True),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.005),
    "centered": lambda p: torch.optim.RMSprop(p, lr=0.005, momentum=0.5, centered=True),
    "tf variant": tf_variant,
    "lamb": lambda p: LAMB(p, lr=0.01),
}
# The others are torch's own and serve for both; float32 LAMB has a test of its own.
REFERENCES: dict[str, Make] = {"tf variant": lambda p: TfRMSprop(p, lr=0.01, momentum=0.5)}


class FloatMoments:
    """Trains half weights with an optimiser over float32 copies, rounded once each step."""

    def __init__(self, module: nn.Module, make: Make) -> None:
        self.module = copy.deepcopy(module)
        self._wide = [nn.Parameter(p.detach().float()) for p in self.module.parameters()]
        self.optimizer = make(self._wide)

    def step(self, *tensors: Tensor) -> Tensor:
        self.module.zero_grad()
        loss = self.module(*tensors)
        loss.backward()
        for wide, param in zip(self._wide, self.module.parameters(), strict=True):
            wide.data = param.detach().float()
            wide.grad = param.grad.float()
        self.optimizer.step()
        with torch.no_grad():
            for wide, param in zip(self._wide, self.module.parameters(), strict=True):
                param.copy_(wide)
        return loss.detach()
