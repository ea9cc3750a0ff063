"""Filters on a grid of distances, all interactions together, to be interpolated."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, final

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own habit
from torch import Tensor, nn

from torchkiln.models._filters import FilterNetwork, GaussianSmearing, cosine_cutoff

# Knots for each distance between two Gaussians, which is the scale on which filters change. On
# trained weights interpolation then errs by 1e-7 of the filters, rounding in float32 by 5e-6.
KNOTS_PER_GAUSSIAN = 42
# Of the four knots around a distance, one lies before 0 and one behind the cutoff.
_KNOTS_OUTSIDE = 3


def knots_for(num_gaussians: int) -> int:
    """Return how many knots make a table as exact as float32 on trained weights."""
    # Products of such sizes have no ragged ends.
    return max(KNOTS_PER_GAUSSIAN * (num_gaussians - 1) // 16, 1) * 16


@final
class FilterGrid(nn.Module):
    """Equally spaced distances (knots), from one before 0 to one behind the cutoff.

    What filter networks see there does not depend on weights: it is computed once. It is no part of
    the state, and follows the module to other devices and precisions.

    Args:
        expansion: Gaussians that distances are smeared over.
        cutoff: Where filters end.
        num_knots: Distances in the table.
    """

    smeared: Tensor
    envelope: Tensor

    def __init__(self, expansion: GaussianSmearing, cutoff: float, num_knots: int) -> None:
        super().__init__()
        # In a list: the Gaussians belong to the model, which has them in its state already.
        self._expansion = [expansion]
        self.cutoff = cutoff
        self.num_knots = num_knots
        self.spacing = cutoff / (num_knots - _KNOTS_OUTSIDE)
        self.register_buffer("smeared", torch.empty(0), persistent=False)
        self.register_buffer("envelope", torch.empty(0), persistent=False)
        self.lay()

    @torch.no_grad()
    def lay(self) -> None:
        """Evaluate Gaussians and cutoff at the knots."""
        dtype = self._expansion[0].offset.dtype
        for name, values in self._see().items():
            self._put(name, values.to(dtype))

    def _see(self) -> dict[str, Tensor]:
        """Return what filter networks see at the knots, in float64."""
        device = self._expansion[0].offset.device
        # Rounded knots would lie beside where interpolation assumes them.
        steps = torch.arange(-1, self.num_knots - 1, dtype=torch.float64, device=device)
        knots = steps * self.spacing
        return {
            "smeared": self._expansion[0](knots),
            "envelope": cosine_cutoff(knots, self.cutoff),
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
        """Return the filters of all networks at the knots, [num_knots, num_filters] each.

        All first layers are one product, all second layers one batched product.

        Args:
            networks: At least one; all of the same sizes.
            in_float64: Round only the result. Slopes are differences of neighbouring knots, divided
                by their spacing, and so are the rounding errors of the knots: forces want this.
        """
        seen = self._see() if in_float64 else {"smeared": self.smeared, "envelope": self.envelope}
        dtype = seen["smeared"].dtype

        def gather(tensors: Iterable[Tensor]) -> Tensor:
            return torch.stack([tensor.to(dtype) for tensor in tensors])

        hidden = F.linear(
            seen["smeared"],
            gather(network.first.weight for network in networks).flatten(0, 1),
            gather(network.first.bias for network in networks).flatten(),
        )
        hidden = networks[0][1](hidden).unflatten(1, (len(networks), -1)).transpose(0, 1)
        weights = gather(network.second.weight for network in networks).transpose(1, 2)
        biases = gather(network.second.bias for network in networks)[:, None]
        # Not baddbmm, which would fill the result with copies of the biases first.
        filters = (torch.bmm(hidden, weights) + biases) * seen["envelope"]
        # Not indexing: its backward would add up full-sized gradients, one for each interaction.
        return filters.to(networks[0].first.weight.dtype).unbind(0)
