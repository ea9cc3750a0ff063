"""Filters as splines of distance, all interactions together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, final

import torch
from torch import Tensor, nn

from torchkiln.models._filters import FilterNetwork, GaussianSmearing, cosine_cutoff
from torchkiln.models._spline import num_values, spline_weights, value_steps
from torchkiln.ops import Layer, refine, softplus_mlp

# Knots for each distance between two Gaussians, which is the scale on which filters change. On
# trained weights splines then err by 3e-7 of the filters, rounding in float32 by 5e-6.
KNOTS_PER_GAUSSIAN = 21
# Of the four knots around a distance, one lies before 0 and one behind the cutoff.
_KNOTS_OUTSIDE = 3


def knots_for(num_gaussians: int) -> int:
    """Return how many knots make a table as exact as float32 on trained weights."""
    # Products of such sizes have no ragged ends.
    return max(KNOTS_PER_GAUSSIAN * (num_gaussians - 1) // 16, 1) * 16


@final
class FilterGrid(nn.Module):
    """Equally spaced knots of splines, from one before 0 to one behind the cutoff.

    Filter networks are evaluated at every fourth knot, and some beyond the ends: between those, a
    polynomial of high degree is as exact as the networks themselves. What they see there does not
    depend on weights: it is computed once. It is no part of the state, and follows the module to
    other devices and precisions.

    Args:
        expansion: The Gaussian functions by which a distance is described.
        cutoff: Where filters end.
        num_knots: Coefficients of a spline.
    """

    smeared: Tensor
    envelope: Tensor
    weights: Tensor

    def __init__(self, expansion: GaussianSmearing, cutoff: float, num_knots: int) -> None:
        super().__init__()
        # In a list: the Gaussians belong to the model, which has them in its state already.
        self._expansion = [expansion]
        self.cutoff = cutoff
        self.num_knots = num_knots
        self.spacing = cutoff / (num_knots - _KNOTS_OUTSIDE)
        self.register_buffer("smeared", torch.empty(0), persistent=False)
        self.register_buffer("envelope", torch.empty(0), persistent=False)
        self.register_buffer("weights", torch.empty(0), persistent=False)
        self.lay()

    @property
    def num_evaluated(self) -> int:
        """At how many distances filter networks are evaluated."""
        return num_values(self.num_knots)

    @torch.no_grad()
    def lay(self) -> None:
        """Evaluate Gaussians and cutoff where networks are evaluated."""
        dtype = self._expansion[0].offset.dtype
        for name, values in self._see().items():
            self._put(name, values.to(dtype))

    def _see(self) -> dict[str, Tensor]:
        """Return what filters are made of besides networks, in float64."""
        device = self._expansion[0].offset.device
        # Rounded distances would lie beside where splines assume them. The first knot is before 0.
        distances = (value_steps(self.num_knots, device) - 1) * self.spacing
        return {
            "smeared": self._expansion[0](distances),
            "envelope": cosine_cutoff(distances, self.cutoff),
            "weights": spline_weights().to(device),
        }

    def _put(self, name: str, values: Tensor) -> None:
        # In place if possible: compiled programs hold on to the tensor.
        old: Tensor = getattr(self, name)
        if old.shape == values.shape and old.dtype == values.dtype and old.device == values.device:
            old.copy_(values)
        else:
            setattr(self, name, values)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Any:
        """Values cast from float32 would be wrong in float64: they are computed anew."""
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        self.lay()
        return self

    def forward(
        self, networks: Sequence[FilterNetwork], *, in_float64: bool = False
    ) -> tuple[Tensor, ...]:
        """Return the splines of all networks' filters, [num_knots, num_filters] each.

        Args:
            networks: At least one.
            in_float64: Round only the result. Slopes are differences of neighbouring knots, divided
                by their spacing, and so are the rounding errors of the knots: forces want this.
        """
        seen = self._see() if in_float64 else dict(self.named_buffers())
        return tuple(self._lay_spline(network, seen) for network in networks)

    def _lay_spline(self, network: FilterNetwork, seen: dict[str, Tensor]) -> Tensor:
        dtype = seen["smeared"].dtype
        first, second = (
            Layer(linear.weight.to(dtype), linear.bias.to(dtype))
            for linear in (network.first, network.second)
        )
        values, _ = softplus_mlp(seen["smeared"], first, second)
        spline = refine(
            values.to(dtype), seen["weights"], self.num_knots, scale=seen["envelope"].flatten()
        )
        return spline.to(network.first.weight.dtype)
