"""The pictures of a report: which ones a run has, what they show in words, and their PNGs."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from torchkiln.report._loss_plot import draw_loss
from torchkiln.report._prediction_plot import draw_predictions
from torchkiln.report._record import RunResult
from torchkiln.report._theme import Theme, render
from torchkiln.report._throughput_plot import draw_throughput
from torchkiln.report._units import format_error, format_loss, format_rate

PICTURE_NAMES = ("loss", "predictions", "throughput")


@dataclass(frozen=True, slots=True)
class Picture:
    """A drawing that can be rendered for either theme.

    Args:
        name: One of `PICTURE_NAMES`; the file is called after it.
        title: For a heading above it.
        alt: What it shows, for people who cannot see it.
        size: Width and height in inches.
    """

    name: str
    title: str
    alt: str
    size: tuple[float, float]
    draw: Callable[[Any, Theme], None]

    def png(self, theme: Theme) -> bytes:
        return render(self.draw, theme, self.size)


def pictures_of(result: RunResult) -> list[Picture]:
    """Return the pictures that the figures of a run suffice for."""
    pictures = []
    if result.steps or result.epochs:
        validated = any(epoch.validation_mae is not None for epoch in result.epochs)
        pictures.append(
            Picture(
                "loss",
                "Learning curve",
                _describe_loss(result),
                (9.5, 6.4 if validated else 3.9),
                partial(draw_loss, result=result),
            )
        )
    split = result.judged
    if split is not None and len(split.true):
        name = "validation" if split is result.validation else "test"
        pictures.append(
            Picture(
                "predictions",
                "Predictions",
                f"Predicted against true values of {len(split.true):,} {result.counted} of the "
                f"{name} split, and the distribution of the errors: mean absolute error "
                f"{format_error(split.mae, result.unit)}.",
                (9.5, 4.2),
                partial(draw_predictions, result=result, name=name, split=split),
            )
        )
    if result.epochs:
        pictures.append(
            Picture(
                "throughput",
                "Throughput",
                f"{result.counted.capitalize()} per second in each of {len(result.epochs)} epochs; "
                f"median {format_rate(result.samples_per_s or math.nan, result.counted)}.",
                (9.5, 3.4),
                partial(draw_throughput, result=result),
            )
        )
    return pictures


def _describe_loss(result: RunResult) -> str:
    losses = [epoch.loss for epoch in result.epochs] or [loss for _, loss in result.steps]
    text = f"Training loss, from {format_loss(losses[0])} to {format_loss(losses[-1])}"
    errors = [e.validation_mae for e in result.epochs if e.validation_mae is not None]
    if errors:
        first, last = (format_error(error, result.unit) for error in (errors[0], errors[-1]))
        text += f", and mean absolute validation error, from {first} to {last}"
    return text + "."
