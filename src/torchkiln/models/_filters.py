"""Filters as functions of distance: what continuous-filter convolutions multiply messages by.

A filter is a small network whose input is a distance, described by Gaussian functions. Its result
is multiplied by a cosine that becomes zero at the cutoff. A filter is evaluated either at the
distance of every edge, or on a grid (`_grid.py`).
"""

from __future__ import annotations

import math
from typing import cast, final

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own habit
from torch import Tensor, nn

# The exponent below which a Gaussian counts as 0: 1e-20, beside neighbours of the order of 1.
_FAINTEST = -46.0


@final
class GaussianSmearing(nn.Module):
    """Equally spaced Gaussians from `start` to `stop`, evaluated at distances."""

    offset: Tensor

    def __init__(self, start: float, stop: float, num_gaussians: int) -> None:
        super().__init__()
        offset = torch.linspace(start, stop, num_gaussians)
        # In float32, as in PyG: the same weights mean the same function.
        self.coeff = -0.5 / (offset[1] - offset[0]).item() ** 2
        self.register_buffer("offset", offset)

    def forward(self, distances: Tensor) -> Tensor:
        """Return [num_distances, num_gaussians]."""
        exponent = self.coeff * (distances[:, None] - self.offset).square()
        # Far from its centre a Gaussian underflows to denormal numbers, with which processors
        # multiply a hundred times as slowly; what is cut off is far below rounding.
        # Asked this way round, NaN stays NaN.
        return torch.where(exponent < _FAINTEST, 0.0, torch.exp(exponent))


@final
class ShiftedSoftplus(nn.Module):
    """Softplus that is 0 at 0."""

    def __init__(self) -> None:
        super().__init__()
        self.shift = torch.tensor(2.0).log().item()

    def forward(self, x: Tensor) -> Tensor:
        return F.softplus(x) - self.shift


@final
class FilterNetwork(nn.Sequential):
    """Two layers, from smeared distances to filters; numbered as PyG numbers them."""

    def __init__(self, num_gaussians: int, num_filters: int) -> None:
        super().__init__(
            nn.Linear(num_gaussians, num_filters),
            ShiftedSoftplus(),
            nn.Linear(num_filters, num_filters),
        )

    @property
    def first(self) -> nn.Linear:
        return cast(nn.Linear, self[0])

    @property
    def second(self) -> nn.Linear:
        return cast(nn.Linear, self[2])


def cosine_cutoff(distances: Tensor, cutoff: float) -> Tensor:
    """Return a factor that falls from 1 at distance 0 to 0 at the cutoff, [num_distances, 1]."""
    return (0.5 * (torch.cos(distances * (math.pi / cutoff)) + 1.0))[:, None]
