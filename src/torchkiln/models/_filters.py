"""Filters as functions of distance: what continuous-filter convolutions multiply messages by.

A filter is a small network of a distance, smeared over Gaussians, times a cosine that ends at the
cutoff. Either it is evaluated at the distance of every edge, or once on a grid of distances, all
interactions together, and interpolated (`torchkiln.ops.cfconv_table`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import cast, final

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own habit
from torch import Tensor, nn

# Knots for each distance between two Gaussians, which is the scale on which filters change. On
# trained weights interpolation then errs by 1e-7 of the filters, rounding in float32 by 5e-6.
KNOTS_PER_GAUSSIAN = 42
# The exponent below which a Gaussian counts as 0: 1e-20, beside neighbours of the order of 1.
_FAINTEST = -46.0
# Of the four knots around a distance, one lies before 0 and one behind the cutoff.
_KNOTS_OUTSIDE = 3


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


def knots_for(num_gaussians: int) -> int:
    """Return how many knots make a table as exact as float32 on trained weights."""
    # Products of such sizes have no ragged ends.
    return max(KNOTS_PER_GAUSSIAN * (num_gaussians - 1) // 16, 1) * 16


def knot_spacing(cutoff: float, num_knots: int) -> float:
    """Return the spacing of knots, such that the table covers distances from 0 to the cutoff."""
    return cutoff / (num_knots - _KNOTS_OUTSIDE)


def knot_distances(cutoff: float, num_knots: int, device: torch.device) -> Tensor:
    """Return the distances of knots in float64, from one before 0 to one behind the cutoff."""
    steps = torch.arange(-1, num_knots - 1, dtype=torch.float64, device=device)
    return steps * knot_spacing(cutoff, num_knots)


def filter_tables(
    networks: Sequence[FilterNetwork], smeared: Tensor, envelope: Tensor
) -> tuple[Tensor, ...]:
    """Return the filters of all networks at the same distances, [num_distances, num_filters] each.

    All first layers are one product, all second layers one batched product.

    Args:
        networks: At least one; all of the same sizes.
        smeared: Smeared distances, [num_distances, num_gaussians].
        envelope: Factor of each distance, [num_distances, 1].
    """
    hidden = F.linear(
        smeared,
        torch.cat([network.first.weight for network in networks]),
        torch.cat([network.first.bias for network in networks]),
    )
    hidden = networks[0][1](hidden).unflatten(1, (len(networks), -1)).transpose(0, 1)
    weights = torch.stack([network.second.weight for network in networks]).transpose(1, 2)
    biases = torch.stack([network.second.bias for network in networks])[:, None]
    filters = torch.baddbmm(biases, hidden, weights) * envelope
    # Not indexing: its backward would add up full-sized gradients, one for each interaction.
    return filters.unbind(0)
