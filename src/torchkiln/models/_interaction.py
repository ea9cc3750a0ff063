"""The interaction block of SchNet: parameters named and initialised as PyG does."""

from __future__ import annotations

from collections.abc import Callable
from typing import final

from torch import Tensor, nn

from torchkiln.models._filters import FilterNetwork
from torchkiln.ops import Layer, softplus_mlp

# Number of an interaction and features that its messages are made of -> sums of messages.
Convolve = Callable[[int, Tensor], Tensor]


def reset_linear(layer: nn.Linear) -> None:
    """Draw Glorot weights; biases are 0."""
    nn.init.xavier_uniform_(layer.weight)
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)


def as_layer(linear: nn.Linear) -> Layer:
    return Layer(linear.weight, linear.bias)


@final
class Convolution(nn.Module):
    """The layers around a continuous-filter convolution."""

    def __init__(self, hidden_channels: int, num_filters: int, network: FilterNetwork) -> None:
        super().__init__()
        self.lin1 = nn.Linear(hidden_channels, num_filters, bias=False)
        self.lin2 = nn.Linear(num_filters, hidden_channels)
        # Held a second time, only because PyG's state has it under both names.
        self.nn = network
        self.reset_parameters()

    def reset_parameters(self) -> None:
        reset_linear(self.lin1)
        reset_linear(self.lin2)


@final
class Interaction(nn.Module):
    """Filter network, convolution, and what turns messages into an update of atoms."""

    def __init__(self, hidden_channels: int, num_gaussians: int, num_filters: int) -> None:
        super().__init__()
        self.mlp = FilterNetwork(num_gaussians, num_filters)
        self.conv = Convolution(hidden_channels, num_filters, self.mlp)
        self.lin = nn.Linear(hidden_channels, hidden_channels)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        reset_linear(self.mlp.first)
        reset_linear(self.mlp.second)
        self.conv.reset_parameters()
        reset_linear(self.lin)

    def forward(
        self, messages: Tensor, h: Tensor, following: Interaction | None
    ) -> tuple[Tensor, Tensor]:
        """Return the new features of atoms, and what messages of the next block are made of.

        Args:
            messages: Their sums at each atom, [num_atoms, num_filters].
            h: Features of atoms so far, [num_atoms, hidden_channels].
            following: The next block; None: the second result is empty.
        """
        return softplus_mlp(
            messages,
            as_layer(self.conv.lin2),
            as_layer(self.lin),
            residual=h,
            third=None if following is None else following.conv.lin1.weight,
        )
