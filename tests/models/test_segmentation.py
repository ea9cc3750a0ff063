"""The loss of pixels and its weights, and metrics that may be added up."""

import math

import pytest
import torch
from torch import nn

from torchkiln.core import ArgumentError, OptionsError
from torchkiln.models import (
    Segmentation,
    SegmentationMetrics,
    count_pixels,
    segmentation_loss,
)


@pytest.fixture
def pixels():
    logits = torch.randn(2, 3, 3, 5, 7)
    labels = torch.randint(0, 3, (2, 3, 5, 7), dtype=torch.uint8)
    labels[0] = 0
    return logits, labels


def single_losses(logits, labels):
    """Cross-entropy of each pixel and its class, by hand."""
    for place in torch.cartesian_prod(*map(torch.arange, labels.shape)).tolist():
        event, *rest = place
        scores = logits[(event, slice(None), *rest)].double()
        kind = int(labels[tuple(place)])
        yield kind, float(torch.logsumexp(scores, 0) - scores[kind])


@pytest.mark.parametrize("balance", ["none", "light", "even", "focal"])
def test_each_balance_is_the_weighted_mean_that_it_says(pixels, balance):
    singles = list(single_losses(*pixels))
    number = [sum(kind == wanted for kind, _ in singles) for wanted in range(3)]
    weights = {
        "none": lambda kind, loss: 1.0,
        "light": lambda kind, loss: (1.0, 1.5, 10.0)[kind],
        "even": lambda kind, loss: 1 / number[kind],
        "focal": lambda kind, loss: (1 - math.exp(-loss)) ** 2,
    }[balance]
    total = sum(weights(*single) * single[1] for single in singles)
    weight = len(singles) if balance == "focal" else sum(weights(*single) for single in singles)
    assert float(segmentation_loss(*pixels, balance)) == pytest.approx(total / weight, rel=1e-5)


@pytest.mark.parametrize("kind", [0, 1, 2])
def test_even_balance_copes_with_classes_that_are_missing(pixels, kind):
    logits = pixels[0].requires_grad_()
    labels = torch.full_like(pixels[1], kind)
    loss = segmentation_loss(logits, labels, "even")
    loss.backward()
    torch.testing.assert_close(loss, segmentation_loss(logits, labels, "none"))
    assert logits.grad.isfinite().all()


def test_the_loss_is_formed_in_full_precision(pixels):
    logits, labels = pixels
    assert segmentation_loss(logits.to(torch.bfloat16), labels).dtype == torch.float32


def test_unknown_balances_and_other_shapes_are_refused(pixels):
    with pytest.raises(OptionsError, match="'none', 'light', 'even', 'focal'; got 'heavy'"):
        Segmentation(nn.Identity(), "heavy")
    with pytest.raises(ArgumentError, match=r"labels must be \[2, 3, 5, 7\].*got \[2, 3, 5\]"):
        Segmentation(nn.Identity())(pixels[0], pixels[1][..., 0])


def test_forward_returns_classes_counts_and_the_loss(pixels):
    logits, labels = pixels
    prediction, counts, loss = Segmentation(nn.Identity(), "none")(logits, labels)
    assert prediction.dtype == torch.uint8
    assert torch.equal(prediction.long(), logits.argmax(1))
    assert torch.equal(counts, count_pixels(prediction, labels))
    assert torch.equal(loss, segmentation_loss(logits, labels, "none"))


def test_metrics_are_what_their_names_say():
    labels = torch.tensor([0, 0, 0, 0, 1, 1, 1, 2, 2, 2])
    prediction = torch.tensor([0, 0, 0, 1, 1, 1, 2, 2, 2, 0])
    counts = count_pixels(prediction, labels)
    assert counts.tolist() == [[3, 1, 0], [0, 2, 1], [1, 0, 2]]
    metrics = SegmentationMetrics.from_counts(counts)
    assert metrics.accuracy == pytest.approx(7 / 10)
    assert metrics.non_background_accuracy == pytest.approx(4 / 6)
    assert metrics.cosmic_iou == pytest.approx(2 / 4)
    assert metrics.neutrino_iou == pytest.approx(2 / 4)
    assert metrics.mean_iou == pytest.approx(0.5)


def test_metrics_of_added_counts_are_those_of_all_pixels():
    labels, prediction = torch.randint(0, 3, (2, 4, 50))
    parts = sum(count_pixels(p, t) for p, t in zip(prediction, labels, strict=True))
    whole = count_pixels(prediction, labels)
    assert SegmentationMetrics.from_counts(parts) == SegmentationMetrics.from_counts(whole)


def test_nothing_to_find_and_nothing_found_is_right():
    empty = torch.zeros(6, dtype=torch.long)
    metrics = SegmentationMetrics.from_counts(count_pixels(empty, empty))
    assert (metrics.non_background_accuracy, metrics.cosmic_iou, metrics.mean_iou) == (1, 1, 1)
    invented = SegmentationMetrics.from_counts(count_pixels(empty + 2, empty))
    assert (invented.neutrino_iou, invented.cosmic_iou, invented.accuracy) == (0, 1, 0)
