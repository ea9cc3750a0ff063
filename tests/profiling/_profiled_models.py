"""Models whose profiles are known: each line says in a comment which modules do its work.

`#: a b | forward` means that the rows of this line belong to the modules `a` and `b` (`.` is the
outermost one), and that only forward has any; without a word behind the bar, backward has some too.
"""

from __future__ import annotations

import inspect
import re

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own habit
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

_COMMENT = re.compile(r"#: (?P<modules>[\w. ]+?)(?: \| (?P<phases>[\w ]+))?$")


class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x  #: squared

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return 2 * x * gradient


class Squared(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return Square.apply(x)


class Block(nn.Module):
    """Computed again in backward."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.inner = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        return checkpoint(self._compute, x, use_reentrant=False)

    def _compute(self, x: Tensor) -> Tensor:
        hidden = torch.sin(x)  #: block
        hidden = self.inner(hidden)  #: block.inner
        return torch.tanh(hidden)  #: block


class Mixed(nn.Module):
    """Residuals, a module called twice, normalisation, dropout, and gradients of several kinds."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.shared = nn.Linear(width, width)
        self.norm = nn.BatchNorm1d(width)
        self.squared = Squared()
        self.block = Block(width)
        self.dropout = nn.Dropout(0.25)
        self.last = nn.Linear(width, width)

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        first = self.shared(x)  #: shared
        active = torch.relu(first)  #: .
        second = self.shared(active)  #: shared
        x = x + second  #: . | forward
        x = self.norm(x)  #: norm
        x = self.squared(x)
        x = self.block(x)
        x = torch.bernoulli(torch.sigmoid(x)) * x  #: .
        x = self.dropout(x)  #: dropout
        x = self.last(x)  #: last
        return F.mse_loss(x, target)  #: .


class Forces(nn.Module):
    """A potential, whose gradient by the positions is part of forward."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.inside = nn.Linear(width, width)
        self.potential = nn.Linear(width, 1)

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        x = x.detach().requires_grad_()
        hidden = torch.sin(self.inside(x))  #: . inside
        energy = self.potential(hidden).sum()  #: . potential
        (force,) = torch.autograd.grad(energy, x, create_graph=True)  #: .
        return F.mse_loss(force, target) + energy  #: .


class Layers(nn.Module):
    """Layers of torch, whose insides no reader of the model knows."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.encoder = nn.TransformerEncoderLayer(width, 2, 16, dropout=0.0, batch_first=True)
        self.memory = nn.LSTM(width, width, batch_first=True)

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        y = self.encoder(x)  #: encoder
        y = self.memory(y)[0]  #: memory
        return F.mse_loss(y, target)  #: .


class Citations(nn.Module):
    """A layer of PyG."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        from torch_geometric.nn import GCNConv

        self.conv = GCNConv(width, width, add_self_loops=False)

    def forward(self, x: Tensor, edge_index: Tensor, target: Tensor) -> Tensor:
        x = self.conv(x, edge_index)  #: conv
        return F.mse_loss(x, target)  #: .


class Gated(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.gate = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        wave = torch.sin(x)  #: second third
        gate = self.gate(wave)  #: second.gate third.gate
        return torch.tanh(gate)  #: second third


class Chain(nn.Module):
    """A layer of torch, called twice, and two modules of one class."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Linear(width, width), nn.Tanh())
        self.second = Gated(width)
        self.third = Gated(width)

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        x = self.first(x)  #: first.0 first.1
        x = self.second(x)
        x = self.third(x)
        x = self.first(x)  #: first.0 first.1
        return F.mse_loss(x, target)  #: .


def expected_modules(*models: type) -> dict[int, tuple[set[str], set[str]]]:
    """Return modules and phases of the lines of classes in this file, by their numbers."""
    found = {}
    for model in models:
        lines, first = inspect.getsourcelines(model)
        for number, line in enumerate(lines, first):
            told = _COMMENT.search(line.rstrip())
            if told is not None:
                modules = {"" if name == "." else name for name in told["modules"].split()}
                phases = set((told["phases"] or "forward backward").split())
                found[number] = (modules, phases)
    assert found
    return found
