"""Pictures of events: what the detector saw, what is true, what the network says."""

from __future__ import annotations

import math
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from torchkiln.core import write_atomic
from torchkiln.report._panels import head_panel, log_scale, stop_at
from torchkiln.report._theme import LIGHT, Theme, render

if TYPE_CHECKING:
    from torchkiln.apps.cosmic._record import EpochMetrics

Image = NDArray[np.float32]
Labels = NDArray[np.uint8]

_CLASSES = {"background": "#eceff3", "cosmic": "#2a6fb5", "neutrino": "#d1342f"}
_EVENT_SIZE = (12.0, 7.0)
_CURVES_SIZE = (9.5, 3.9)
# Up to here updates and epochs have marks that stand out.
_MAX_MARKED = 60


def write_event_picture(
    path: Path, image: Image, truth: Labels, prediction: Labels, title: str
) -> None:
    """Draw the three planes of an event: input, truth and prediction side by side.

    Args:
        path: PNG to write.
        image: Signals, [3, height, width].
        truth: Classes, [3, height, width].
        prediction: Likewise.
        title: Above all of it.
    """
    draw = partial(_draw_event, image=image, truth=truth, prediction=prediction, title=title)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, render(draw, LIGHT, _EVENT_SIZE))


def write_curves(path: Path, losses: list[float], epochs: list[EpochMetrics]) -> None:
    """Draw the loss of every update, and the metrics of held-out events after every epoch."""
    draw = partial(_draw_curves, losses=losses, epochs=epochs)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, render(draw, LIGHT, _CURVES_SIZE))


def _draw_event(
    figure: Any, theme: Theme, image: Image, truth: Labels, prediction: Labels, title: str
) -> None:
    from matplotlib.colors import ListedColormap
    from matplotlib.patches import Patch

    classes = ListedColormap(list(_CLASSES.values()))
    axes = figure.subplots(3, 3, sharex=True, sharey=True)
    for column, name in enumerate(("input, log(1 + signal)", "truth", "prediction")):
        axes[0, column].set_title(name)
    for plane in range(3):
        axes[plane, 0].set_ylabel(f"plane {plane}\ntick")
        axes[plane, 0].imshow(np.log1p(image[plane]), cmap="magma_r", **_PIXELS)
        for column, labels in enumerate((truth, prediction), start=1):
            axes[plane, column].imshow(labels[plane], cmap=classes, vmin=0, vmax=2, **_PIXELS)
    for axis in axes.flat:
        axis.grid(visible=False)
    for axis in axes[2]:
        axis.set_xlabel("wire")
    handles = [Patch(color=colour, label=name) for name, colour in _CLASSES.items()]
    figure.legend(handles=handles, loc="outside lower center", ncols=3)
    figure.suptitle(title, color=theme.ink)


_PIXELS: dict[str, Any] = {"origin": "lower", "aspect": "auto", "interpolation": "none"}


def _draw_curves(
    figure: Any, theme: Theme, losses: list[float], epochs: list[EpochMetrics]
) -> None:
    left, right = figure.subplots(1, 2)
    few = {"marker": "o", "markersize": 3.5} if len(losses) <= _MAX_MARKED else {}
    updates = range(1, len(losses) + 1)
    left.plot(updates, losses, color=theme.main, linewidth=1.4 if few else 0.8, **few)
    left.set_ylabel("loss")
    left.set_xlabel("update")
    positive = [loss for loss in losses if 0 < loss < math.inf]
    if positive:
        log_scale(left, positive)
    if losses:
        stop_at(left, 1, len(losses))
    head_panel(left, theme, "Loss of each update")
    numbers = [record.epoch + 1 for record in epochs]
    shown = {
        "non-background accuracy": (theme.main, "non_background_accuracy"),
        "cosmic IoU": (theme.third, "cosmic_iou"),
        "neutrino IoU": (theme.second, "neutrino_iou"),
        "mean IoU": (theme.ink, "mean_iou"),
    }
    size = 3.5 if len(numbers) <= _MAX_MARKED else 1.5
    for name, (colour, attribute) in shown.items():
        values = [getattr(record.held_out, attribute) for record in epochs]
        right.plot(numbers, values, marker="o", markersize=size, color=colour, label=name)
    right.set_ylim(0, 1.02)
    right.set_ylabel("share; 1 is perfect")
    right.set_xlabel("epoch")
    if numbers:
        stop_at(right, numbers[0], numbers[-1])
    head_panel(right, theme, "Held-out events")
