"""UResNet2D: CosmicTagger's network, which gives each pixel of three wire planes a class."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import final

import torch
from torch import Tensor, nn

from torchkiln.core import ArgumentError
from torchkiln.models._uresnet_blocks import (
    Connection,
    Convolution,
    DeepestLayer,
    block_series,
    downsample,
    upsample,
)
from torchkiln.models._uresnet_settings import UResNetSettings
from torchkiln.ops._loss_marks import identity_loss

NUM_PLANES = 3
NUM_CLASSES = 3
_FIRST_KERNEL_SIZE = 5

# Of labels, integers [batch, height, width], and logits, [batch, 3 classes, height, width], of each
# of three planes.
LossCalculator = Callable[[list[Tensor], list[Tensor]], Tensor]


@final
class UResNet2D(nn.Module):
    """A U-shaped residual network over the three wire planes of a detector.

    All planes go through the same weights, as neighbours in the batch, so that one convolution
    serves all three; only at the lowest resolution they are merged. Normalisation therefore takes
    its statistics over the planes together. Weights are channels_last from the start, the layout
    in which CPUs convolve fastest.

    Args:
        settings: Size and kind of the network; None: the defaults of `UResNetSettings`.
        planes_apart: Return logits as CosmicTagger's own network does, as a list of the planes'.
    """

    def __init__(
        self, settings: UResNetSettings | None = None, *, planes_apart: bool = False
    ) -> None:
        super().__init__()
        self.planes_apart = planes_apart
        self.settings = settings = settings or UResNetSettings()
        filters = settings.filters
        steps = list(pairwise(filters))

        def blocks(num_features: int) -> nn.Sequential:
            return block_series(settings.blocks_per_layer, num_features, 3, settings)

        self.first = Convolution(1, filters[0], _FIRST_KERNEL_SIZE, settings)
        self.down_blocks = nn.ModuleList(blocks(high) for high, _ in steps)
        self.downsamples = nn.ModuleList(downsample(high, low, settings) for high, low in steps)
        self.deepest = DeepestLayer(filters[-1], NUM_PLANES, settings)
        self.upsamples = nn.ModuleList(upsample(low, high, settings) for high, low in steps)
        self.connections = nn.ModuleList(Connection(high, settings) for high, _ in steps)
        self.up_blocks = nn.ModuleList(blocks(high) for high, _ in steps)
        self.last = nn.Conv2d(filters[0], NUM_CLASSES, 1)
        for parameter in self.parameters():
            if parameter.ndim == 4:
                # A weight of one channel or one pixel counts as either layout, and torch would take
                # the slow one; a new tensor has strides that leave no doubt.
                layout = torch.empty_like(parameter, memory_format=torch.channels_last)
                parameter.data = layout.detach().copy_(parameter.detach())

    def forward(
        self,
        input_tensor: Tensor,
        loss_calculator: LossCalculator | None = None,
        labels_image: Tensor | None = None,
    ) -> Tensor | list[Tensor] | tuple[list[Tensor], list[Tensor], Tensor]:
        """Return logits; with a loss calculator logits, labels and loss, for a training program.

        Logits are [batch, 3 classes, 3 planes, height, width]. Classes come second, where torch's
        losses want them; `unbind(2)` gives one [batch, 3 classes, height, width] for each plane.
        That list is what a loss calculator gets, and what is returned with it or if the network has
        `planes_apart`. Labels are returned plane by plane, too, as int64 [batch, height, width].
        The loss, of which the mean is taken, is marked by `identity_loss`.

        Args:
            input_tensor: Signals of the three planes, [batch, 3, height, width].
            loss_calculator: Returns the loss of (labels, logits), each a list of three planes.
            labels_image: Classes of all pixels, [batch, 3, height, width]; of any type of number.

        Raises:
            ArgumentError: if there are not three planes, or sides cannot be halved so often; or not
                one label for each pixel.
        """
        logits = self._logits(input_tensor)
        if loss_calculator is None:
            return list(logits.unbind(2)) if self.planes_apart else logits
        labels = _planes_of(labels_image, input_tensor.shape)
        planes = list(logits.unbind(2))
        loss = identity_loss(loss_calculator(labels, planes), reduction="mean")
        return planes, labels, loss

    def _logits(self, images: Tensor) -> Tensor:
        self._check(images)
        batch_size, _, height, width = images.shape
        x = self.first(images.reshape(batch_size * NUM_PLANES, 1, height, width))
        skipped = []
        for blocks, down in zip(self.down_blocks, self.downsamples, strict=True):
            x = blocks(x)
            skipped.append(x)
            x = down(x)
        x = self.deepest(x)
        for level in reversed(range(self.settings.network_depth)):
            x = self.connections[level](self.upsamples[level](x), skipped.pop())
            x = self.up_blocks[level](x)
        logits: Tensor = self.last(x)
        planes = logits.reshape(batch_size, NUM_PLANES, NUM_CLASSES, height, width)
        return planes.transpose(1, 2)

    def _check(self, images: Tensor) -> None:
        if images.ndim != 4 or images.shape[1] != NUM_PLANES:
            raise ArgumentError(
                f"images must be [batch, {NUM_PLANES} planes, height, width], got "
                f"{list(images.shape)}"
            )
        multiple = 2**self.settings.network_depth
        for name, size in (("height", images.shape[2]), ("width", images.shape[3])):
            if size == 0 or size % multiple:
                fit = max(-(-size // multiple), 1) * multiple
                raise ArgumentError(
                    f"the {name} of images is {size}, but network_depth "
                    f"{self.settings.network_depth} halves it so often that it must be a multiple "
                    f"of {multiple}; pad it to {fit}, or use a network_depth of at most "
                    f"{_halvings(size)}"
                )


def _halvings(size: int) -> int:
    """How often `size` can be halved."""
    return (size & -size).bit_length() - 1 if size else 0


def _planes_of(labels_image: Tensor | None, shape: torch.Size) -> list[Tensor]:
    """Cut labels into planes: int64 [batch, height, width] each."""
    if labels_image is None or labels_image.shape != shape:
        got = None if labels_image is None else list(labels_image.shape)
        raise ArgumentError(
            f"with a loss_calculator, labels_image must be {list(shape)}, one label for each "
            f"pixel of input_tensor; got {got}"
        )
    return [plane.squeeze(1) for plane in labels_image.long().chunk(NUM_PLANES, dim=1)]
