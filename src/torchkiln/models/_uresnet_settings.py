"""What a UResNet2D looks like: the configuration space of CosmicTagger's network."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Literal, get_args

from torchkiln.core import OptionsError, to_choice

Connections = Literal["sum", "concat", "none"]
Upsampling = Literal["interpolation", "convolutional"]
Downsampling = Literal["max_pooling", "convolutional"]
GrowthRate = Literal["additive", "multiplicative"]

_CHOICES = {
    "connections": get_args(Connections),
    "upsampling": get_args(Upsampling),
    "downsampling": get_args(Downsampling),
    "growth_rate": get_args(GrowthRate),
}
_LEAST = {
    "n_initial_filters": 1,
    "network_depth": 1,
    "blocks_per_layer": 1,
    "blocks_deepest_layer": 1,
    "bottleneck_deepest": 1,
    "filter_size_deepest": 1,
}


@dataclass(frozen=True, kw_only=True)
class UResNetSettings:
    """The size and the kind of a `UResNet2D`; defaults are near those of CosmicTagger.

    Args:
        n_initial_filters: Features at full resolution.
        network_depth: How often the resolution is halved; sides of images must be divisible by
            two to this power.
        blocks_per_layer: Blocks at each resolution, on the way down and again on the way up.
        blocks_deepest_layer: Blocks at the lowest resolution.
        residual: Blocks of two convolutions whose input is added to their output; otherwise blocks
            are one convolution.
        batch_norm: Normalise after each convolution, over all planes of the batch.
        bias: Give convolutions a bias; those that are normalised never have one, because the
            normalisation would subtract it.
        connections: How the features of the way down come in on the way up: sum; concat, which a
            1x1 convolution brings back to the number of features; or none.
        upsampling: interpolation (bilinear) or convolutional (transposed, learnt).
        downsampling: max_pooling or convolutional (stride 2, learnt).
        growth_rate: How features grow with depth: additive, by n_initial_filters each time, or
            multiplicative, by a factor of two each time.
        bottleneck_deepest: Features in which the three planes are merged at the lowest resolution.
        filter_size_deepest: Width of the convolutions there; odd.
        block_concat: Block the concatenation there: planes are never merged, each is segmented by
            itself.

    Raises:
        OptionsError: if a size or a choice makes no sense.
    """

    n_initial_filters: int = 16
    network_depth: int = 6
    blocks_per_layer: int = 2
    blocks_deepest_layer: int = 5
    residual: bool = True
    batch_norm: bool = True
    bias: bool = True
    connections: Connections = "concat"
    upsampling: Upsampling = "interpolation"
    downsampling: Downsampling = "max_pooling"
    growth_rate: GrowthRate = "additive"
    bottleneck_deepest: int = 256
    filter_size_deepest: int = 5
    block_concat: bool = False

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name in _LEAST:
                least = _LEAST[field.name]
                if not isinstance(value, int) or isinstance(value, bool) or value < least:
                    raise OptionsError(
                        f"{field.name} must be an integer of at least {least}, got {value!r}"
                    )
            elif field.name in _CHOICES:
                to_choice(_CHOICES[field.name], value, field.name)
            elif not isinstance(value, bool):
                raise OptionsError(f"{field.name} must be true or false, got {value!r}")
        if self.filter_size_deepest % 2 == 0:
            raise OptionsError(
                f"filter_size_deepest must be odd, so that a filter has a middle; got "
                f"{self.filter_size_deepest}, use {self.filter_size_deepest + 1}"
            )

    @property
    def filters(self) -> tuple[int, ...]:
        """Features at each resolution, from full to lowest: `network_depth` + 1 numbers."""
        depths = range(self.network_depth + 1)
        if self.growth_rate == "additive":
            return tuple(self.n_initial_filters * (depth + 1) for depth in depths)
        return tuple(self.n_initial_filters * 2**depth for depth in depths)
