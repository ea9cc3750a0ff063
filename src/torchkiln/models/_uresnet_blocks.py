"""What a UResNet2D is built of: convolution blocks, steps between resolutions, connections."""

from __future__ import annotations

from typing import final

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own habit
from torch import Tensor, nn

from torchkiln.models._uresnet_settings import UResNetSettings


@final
class Convolution(nn.Module):
    """A convolution with its normalisation; ReLU last unless the caller adds something first."""

    def __init__(
        self,
        num_in: int,
        num_out: int,
        kernel_size: int,
        settings: UResNetSettings,
        *,
        stride: int = 1,
        relu: bool = True,
    ) -> None:
        super().__init__()
        self.conv = nn.Conv2d(
            num_in,
            num_out,
            kernel_size,
            stride=stride,
            # Halving takes 2x2 pixels to one; all others keep the size.
            padding=kernel_size // 2 if stride == 1 else 0,
            bias=settings.bias and not settings.batch_norm,
        )
        self.norm = nn.BatchNorm2d(num_out) if settings.batch_norm else None
        self.relu = relu

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv(x)
        if self.norm is not None:
            x = self.norm(x)
        return F.relu(x) if self.relu else x


@final
class ResidualBlock(nn.Module):
    """Two convolutions; the input is added before the last ReLU."""

    def __init__(self, num_features: int, kernel_size: int, settings: UResNetSettings) -> None:
        super().__init__()
        self.first = Convolution(num_features, num_features, kernel_size, settings)
        self.second = Convolution(num_features, num_features, kernel_size, settings, relu=False)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.second(self.first(x)) + x)


def block_series(
    num_blocks: int, num_features: int, kernel_size: int, settings: UResNetSettings
) -> nn.Sequential:
    """Return blocks, one after the other, that keep size and number of features."""
    blocks: list[nn.Module] = []
    for _ in range(num_blocks):
        if settings.residual:
            blocks.append(ResidualBlock(num_features, kernel_size, settings))
        else:
            blocks.append(Convolution(num_features, num_features, kernel_size, settings))
    return nn.Sequential(*blocks)


def downsample(num_in: int, num_out: int, settings: UResNetSettings) -> nn.Module:
    """Return what halves the resolution."""
    if settings.downsampling == "convolutional":
        return Convolution(num_in, num_out, 2, settings, stride=2)
    return nn.Sequential(nn.MaxPool2d(2), Convolution(num_in, num_out, 1, settings))


def upsample(num_in: int, num_out: int, settings: UResNetSettings) -> nn.Module:
    """Return what doubles the resolution."""
    if settings.upsampling == "convolutional":
        return _TransposedConvolution(num_in, num_out, settings)
    # The number of features is changed first, where there are four times fewer pixels.
    return nn.Sequential(
        Convolution(num_in, num_out, 1, settings),
        nn.Upsample(scale_factor=2, mode="bilinear", align_corners=False),
    )


@final
class _TransposedConvolution(nn.Module):
    def __init__(self, num_in: int, num_out: int, settings: UResNetSettings) -> None:
        super().__init__()
        self.conv = nn.ConvTranspose2d(
            num_in, num_out, 2, stride=2, bias=settings.bias and not settings.batch_norm
        )
        self.norm = nn.BatchNorm2d(num_out) if settings.batch_norm else None

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv(x)
        if self.norm is not None:
            x = self.norm(x)
        return F.relu(x)


@final
class Connection(nn.Module):
    """Brings the features of the way down into those of the way up."""

    def __init__(self, num_features: int, settings: UResNetSettings) -> None:
        super().__init__()
        self.kind = settings.connections
        self.merge = (
            Convolution(2 * num_features, num_features, 1, settings)
            if self.kind == "concat"
            else None
        )

    def forward(self, up: Tensor, down: Tensor) -> Tensor:
        if self.merge is not None:
            merged: Tensor = self.merge(torch.cat([up, down], dim=1))
            return merged
        return up + down if self.kind == "sum" else up


@final
class DeepestLayer(nn.Module):
    """The lowest resolution, where the planes of an event see each other.

    Planes come as neighbours in the batch; their features are concatenated, squeezed into a
    bottleneck, passed through blocks of wide filters, and handed back to their planes.
    """

    def __init__(self, num_features: int, num_planes: int, settings: UResNetSettings) -> None:
        super().__init__()
        # Planes that stay apart are events of one plane each.
        self.num_merged = 1 if settings.block_concat else num_planes
        width = num_features * self.num_merged
        bottleneck = settings.bottleneck_deepest
        self.squeeze = Convolution(width, bottleneck, 1, settings)
        self.blocks = block_series(
            settings.blocks_deepest_layer, bottleneck, settings.filter_size_deepest, settings
        )
        self.widen = Convolution(bottleneck, width, 1, settings)

    def forward(self, x: Tensor) -> Tensor:
        _, num_features, height, width = x.shape
        merged: Tensor = x.reshape(-1, self.num_merged * num_features, height, width)
        merged = self.widen(self.blocks(self.squeeze(merged)))
        return merged.reshape(x.shape)
