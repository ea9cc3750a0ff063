"""The pictures of a report: which ones a run has, what they show in words, and their PNGs."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from torchkiln.report._loss_plot import draw_loss
from torchkiln.report._prediction_plot import draw_predictions, is_relative
from torchkiln.report._record import RunResult, ValidationResult
from torchkiln.report._theme import Theme, render, with_few_colours
from torchkiln.report._throughput_plot import draw_throughput
from torchkiln.report._units import (
    format_count,
    format_error,
    format_loss,
    format_rate,
    format_short_error,
)

PICTURE_NAMES = ("loss", "predictions", "throughput")
_WIDTH, _NARROW_WIDTH = 9.5, 4.6


@dataclass(frozen=True, slots=True)
class Picture:
    """A drawing that can be rendered for either theme, and for wide and narrow windows.

    Args:
        name: One of `PICTURE_NAMES`; the file is called after it.
        title: For a heading above it.
        alt: What it shows, for people who cannot see it.
        size: Width and height in inches.
        narrow_size: Likewise, for a telephone.
        draw: Draws it into a figure of either size.
        caption: What a reader must know to understand it; empty: nothing.
    """

    name: str
    title: str
    alt: str
    size: tuple[float, float]
    narrow_size: tuple[float, float]
    draw: Callable[[Any, Theme], None]
    caption: str = ""

    def png(self, theme: Theme, *, narrow: bool = False) -> bytes:
        # A page holds twelve of them: small files keep it small enough to be sent.
        return with_few_colours(render(self.draw, theme, self.narrow_size if narrow else self.size))


def pictures_of(result: RunResult) -> list[Picture]:
    """Return the pictures that the figures of a run suffice for."""
    pictures = []
    if result.steps or result.epochs:
        pictures.append(_loss_picture(result))
    split = result.judged
    if split is not None and len(split.true):
        pictures.append(_prediction_picture(result, split))
    # One epoch has nothing to be compared with.
    if len(result.epochs) > 1:
        pictures.append(_throughput_picture(result))
    return pictures


def _loss_picture(result: RunResult) -> Picture:
    validated = _is_validated(result)
    losses = [epoch.loss for epoch in result.epochs] or [loss for _, loss in result.steps]
    alt = f"Training loss, from {format_loss(losses[0])} to {format_loss(losses[-1])}"
    errors = [e.validation_mae for e in result.epochs if e.validation_mae is not None]
    if errors:
        first, last = (format_error(error, result.unit) for error in (errors[0], errors[-1]))
        alt += f", and mean absolute validation error, from {first} to {last}"
    return Picture(
        "loss",
        "Learning curve",
        f"{alt}.",
        (_WIDTH, 6.4 if validated else 3.9),
        (_NARROW_WIDTH, 6.0 if validated else 3.7),
        partial(draw_loss, result=result),
        _explain_baseline(result) if validated else "",
    )


def _prediction_picture(result: RunResult, split: ValidationResult) -> Picture:
    name = "validation" if result.test is None else "test"
    relative = is_relative(split)
    caption = "" if _is_validated(result) else _explain_baseline(result)
    if relative:
        caption += (
            " In the first panel the prediction of the linear baseline is subtracted from both "
            "axes, because most of the target follows from the formula and would hide every "
            "error. A model that has learnt nothing beyond the formula lies on a level line there."
        )
    return Picture(
        "predictions",
        "Predictions",
        f"Predicted against true values of {format_count(len(split.true), result.counted)} of the "
        f"{name} split{', relative to the linear baseline' if relative else ''}, the distribution "
        "of the errors, and the errors against the true values: mean absolute error "
        f"{format_error(split.mae, result.unit)}.",
        (_WIDTH, 7.4),
        (_NARROW_WIDTH, 11.5),
        partial(draw_predictions, result=result, name=name, split=split),
        caption.strip(),
    )


def _throughput_picture(result: RunResult) -> Picture:
    return Picture(
        "throughput",
        "Throughput",
        f"{result.counted.capitalize()} per second in each of "
        f"{format_count(len(result.epochs), 'epochs')}; "
        f"median {format_rate(result.samples_per_s or math.nan, result.counted)}.",
        (_WIDTH, 3.4),
        (_NARROW_WIDTH, 3.4),
        partial(draw_throughput, result=result),
    )


def _explain_baseline(result: RunResult) -> str:
    """Say what the linear baseline is, and what it reaches on each split; empty without one."""
    splits = {"validation": result.validation, "test": result.test}
    reached = [
        f"{format_short_error(split.baseline_mae, result.unit)} on the {name} split"
        for name, split in splits.items()
        if split is not None and split.baseline_mae is not None
    ]
    if not reached:
        return ""
    return (
        "The linear baseline predicts from the formula alone: a least-squares fit to the number of "
        "atoms of each element, made on the training split. Its mean absolute error is "
        f"{' and '.join(reached)}. A model that learns from the structure is far below it."
    )


def _is_validated(result: RunResult) -> bool:
    return any(epoch.validation_mae is not None for epoch in result.epochs)
