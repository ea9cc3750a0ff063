"""CosmicTagger's network with its loss inside, as a training program wants it, and without."""

from __future__ import annotations

import math
from typing import Any, final

import torch
from torch import Tensor, nn

from torchkiln.apps.cosmic._settings import Settings
from torchkiln.core import OptionsError
from torchkiln.models import Balance, Segmentation, UResNet2D, UResNetSettings
from torchkiln.runtime import identity_loss

# About the smallest signal that the detector records.
_THRESHOLD = 5.0
_DTYPES = {"float32": None, "bfloat16": torch.bfloat16, "float16": torch.float16}


@final
class Tagger(nn.Module):
    """UResNet2D on the logarithm of signals, in a precision of its own.

    Signals of one track differ by a factor of a hundred, and sums of them over squares of pixels by
    more; in their logarithm, faint tracks are as visible as bright ones.

    Args:
        network: Returns logits of images.
        precision: Of convolutions: "float32", "bfloat16" or "float16"; weights stay as they are.
    """

    def __init__(self, network: nn.Module, precision: str = "float32") -> None:
        super().__init__()
        self.network = network
        self.dtype = _DTYPES[precision]

    def forward(self, images: Tensor) -> Tensor:
        """Return logits, [batch, 3 classes, 3 planes, height, width]."""
        compressed = torch.log1p(images / _THRESHOLD)
        enabled = self.dtype is not None
        # Inside of forward, so that it is part of a program that is recorded.
        with torch.autocast(images.device.type, dtype=self.dtype, enabled=enabled):
            logits: Tensor = self.network(compressed)
        return logits


@final
class TaggerWithLoss(nn.Module):
    """What is trained: forward computes the loss too, and says which output it is.

    Args:
        tagger: The network.
        balance: How pixels are weighed, see `torchkiln.models.segmentation_loss`.
    """

    def __init__(self, tagger: Tagger, balance: Balance) -> None:
        super().__init__()
        self.segmentation = Segmentation(tagger, balance)

    def forward(self, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Return counts for metrics, int64 [3 true, 3 predicted], and the loss."""
        _, counts, loss = self.segmentation(images, labels)
        return counts, identity_loss(loss, reduction="none")


@final
class Classes(nn.Module):
    """What is used afterwards: classes of pixels.

    Args:
        tagger: The network.
        background_odds: A pixel is background only if that is so many times as likely as each other
            class. Above 1, fewer pixels of faint tracks are missed, and more noise is taken for
            them.
    """

    def __init__(self, tagger: Tagger, background_odds: float = 1.0) -> None:
        super().__init__()
        self.tagger = tagger
        self._handicap = math.log(background_odds)

    def forward(self, images: Tensor) -> Tensor:
        """Return classes, uint8 [batch, 3 planes, height, width]."""
        background, *others = self.tagger(images).unbind(1)
        logits = torch.stack([background - self._handicap, *others], dim=1)
        return logits.argmax(dim=1).to(torch.uint8)


def make_tagger(settings: Settings) -> Tagger:
    """Return a network with initial weights that depend on `run.seed` alone.

    Raises:
        OptionsError: The network has no such setting, or it cannot have that value.
    """
    torch.manual_seed(settings.run.seed)
    return Tagger(UResNet2D(network_settings(settings.network)), settings.run.precision)


def network_settings(values: dict[str, Any]) -> UResNetSettings:
    """Return the settings of the network with the differences in `values`.

    Raises:
        OptionsError: There is no such setting, or it cannot have that value.
    """
    known = UResNetSettings.__dataclass_fields__
    for name in values:
        if name not in known:
            raise OptionsError(f"there is no network.{name}; known are {', '.join(known)}")
    return UResNetSettings(**values)
