"""The loss of a segmentation inside the model, with weights against the many empty pixels."""

from __future__ import annotations

from typing import Literal, final, get_args

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own habit
from torch import Tensor, nn

from torchkiln.core import ArgumentError, to_choice
from torchkiln.models._segmentation_metrics import count_pixels

Balance = Literal["none", "light", "even", "focal"]

# Of background, cosmic and neutrino pixels: enough that neutrinos, the fewest, are not given up.
_LIGHT_WEIGHTS = (1.0, 1.5, 10.0)
_FOCAL_POWER = 2


@final
class Segmentation(nn.Module):
    """A model with its loss, as `training_model` wants it.

    Args:
        model: Returns logits, [batch, classes, ...], of images; `UResNet2D`, or one's own.
        balance: How pixels are weighed in the loss, see `segmentation_loss`.

    Raises:
        OptionsError: if there is no such balance.
    """

    def __init__(self, model: nn.Module, balance: Balance = "light") -> None:
        super().__init__()
        to_choice(get_args(Balance), balance, "balance")
        self.model = model
        self.balance: Balance = balance

    def forward(self, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return classes, uint8 like `labels`; counts for metrics; and the loss.

        The counts are int64 [3 true, 3 predicted]: add up those of all batches, and hand the sum to
        `SegmentationMetrics.from_counts`.

        Args:
            images: What the model takes.
            labels: Classes of pixels, integers [batch, ...].

        Raises:
            ArgumentError: if there is not one label for each pixel.
        """
        logits = self.model(images)
        prediction = logits.detach().argmax(dim=1).to(torch.uint8)
        if prediction.shape != labels.shape:
            raise ArgumentError(
                f"labels must be {list(prediction.shape)}, one for each pixel; got "
                f"{list(labels.shape)}"
            )
        loss = segmentation_loss(logits, labels, self.balance)
        return prediction, count_pixels(prediction, labels), loss


def segmentation_loss(logits: Tensor, labels: Tensor, balance: Balance = "light") -> Tensor:
    """Return the weighted mean of the cross-entropy of all pixels, in float32.

    Args:
        logits: [batch, 3 classes, ...].
        labels: Classes, integers [batch, ...]: 0 background, 1 cosmic, 2 neutrino.
        balance: "none": all pixels weigh the same. "light": cosmic pixels 1.5 times and neutrino
            pixels 10 times as much as background. "even": all pixels of a class together weigh the
            same as those of any other class that the batch has. "focal": a pixel weighs the square
            of how wrong it is, so that the many easy ones fade.
    """
    # Sums over millions of pixels need float32 also where the model computes in less.
    loss = F.cross_entropy(logits.float(), labels.long(), reduction="none")
    if balance == "none":
        return loss.mean()
    if balance == "focal":
        # exp(-loss) is the probability that the true class was given.
        return (loss * (1 - torch.exp(-loss)) ** _FOCAL_POWER).mean()
    weights = _pixel_weights(labels, balance)
    return (loss * weights).sum() / weights.sum()


def _pixel_weights(labels: Tensor, balance: Balance) -> Tensor:
    classes = [labels == kind for kind in range(len(_LIGHT_WEIGHTS))]
    if balance == "light":
        weights = [torch.full((), weight, device=labels.device) for weight in _LIGHT_WEIGHTS]
    else:
        # A class without pixels never looks up its weight.
        weights = [1 / kind.sum().clamp(min=1).float() for kind in classes]
    total = torch.where(classes[0], weights[0], weights[1])
    return torch.where(classes[2], weights[2], total)
