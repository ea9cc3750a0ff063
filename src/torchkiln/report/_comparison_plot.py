"""The curves of several runs over each other: losses, and validation errors for each target."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from torchkiln.report._comparison import NamedRun
from torchkiln.report._loss_plot import drawable, smoothed, step_curve, thinned
from torchkiln.report._panels import is_narrow, log_scale
from torchkiln.report._record import RunResult
from torchkiln.report._theme import Theme
from torchkiln.report._units import error_scale

# Beyond the three colours that every theme has; readable on light and on dark pages.
_MORE_COLOURS = ("#8a63d2", "#c2410c", "#0891b2", "#a16207", "#db2777")
_DASHES = ("-", "--", ":")
# With so many epochs their means make a curve; with fewer, single steps do, smoothed by a bell of a
# width that is a share of the run.
_ENOUGH_EPOCHS = 5
_SMOOTHED_SHARE = 0.01
_THINNEST, _THICKEST = 1.4, 3.4
_FEW_POINTS = 60  # that can be told apart
_LONG_NAME = 28
_PANEL_INCHES, _LEGEND_LINE_INCHES = 3.3, 0.23
_WIDTH_INCHES, _NARROW_INCHES = 9.5, 4.6

Group = tuple[str, str]  # target and unit: errors of one panel


def comparison_size(runs: Sequence[NamedRun], *, narrow: bool = False) -> tuple[float, float]:
    """Return width and height of the picture in inches, for a wide or a narrow window."""
    panels = 1 + len(_validated_groups(runs))
    lines = math.ceil(len(runs) / _legend_columns(runs, narrow))
    width = _NARROW_INCHES if narrow else _WIDTH_INCHES
    return width, _PANEL_INCHES * panels + _LEGEND_LINE_INCHES * lines + 0.3


def draw_comparison(figure: Any, theme: Theme, runs: Sequence[NamedRun]) -> None:
    """Draw a panel of losses, and one of validation errors for each target there is."""
    groups = _validated_groups(runs)
    panels = figure.subplots(1 + len(groups), 1, squeeze=False)[:, 0]
    styles = [_style(theme, number, len(runs)) for number in range(len(runs))]
    _draw_losses(panels[0], runs, styles)
    for panel, group in zip(panels[1:], groups, strict=True):
        _draw_errors(panel, group, runs, styles)
    lines = [panels[0].plot([], [], **style)[0] for style in styles]
    figure.legend(
        lines,
        [run.name for run in runs],
        loc="outside upper left",
        ncols=_legend_columns(runs, is_narrow(figure)),
        handlelength=2.4,
    )


def _draw_losses(panel: Any, runs: Sequence[NamedRun], styles: list[dict[str, Any]]) -> None:
    by_epochs = all(len(run.result.epochs) >= _ENOUGH_EPOCHS for run in runs)
    curves = [_loss_curve(run.result, by_epochs=by_epochs) for run in runs]
    logarithmic = all((losses > 0).all() for _, losses in curves)
    for (positions, losses), style in zip(curves, styles, strict=True):
        mark = "o" if len(losses) <= _FEW_POINTS else ""
        panel.plot(positions, losses, marker=mark, markersize=4, **style)
    shown = [float(loss) for _, losses in curves for loss in losses]
    if shown and logarithmic:
        log_scale(panel, shown)
    panel.set_title("Training loss, mean of each epoch" if by_epochs else "Training loss, smoothed")
    panel.set_ylabel("loss")
    _finish(panel, [positions for positions, _ in curves])


def _loss_curve(result: RunResult, *, by_epochs: bool) -> tuple[Any, Any]:
    """Return places on the axis of epochs, and means of epochs or smoothed losses of steps."""
    positions, losses = step_curve(result)
    known = np.flatnonzero(np.isfinite(losses) & (losses != 0))  # 0: nothing but filler
    positions, losses = positions[known], losses[known]
    if by_epochs or len(losses) < 20:
        epochs = [epoch for epoch in result.epochs if math.isfinite(epoch.loss)]
        places = np.array([epoch.epoch + 1.0 for epoch in epochs])
        return places, np.array([epoch.loss for epoch in epochs])
    smooth = smoothed(losses, max(2.0, _SMOOTHED_SHARE * len(losses)))
    kept = thinned(np.arange(len(smooth)))
    return positions[kept], smooth[kept]


def _draw_errors(
    panel: Any, group: Group, runs: Sequence[NamedRun], styles: list[dict[str, Any]]
) -> None:
    target, unit = group
    scale = error_scale(unit)
    shown: list[float] = []
    places = []
    for run, style in zip(runs, styles, strict=True):
        if _group(run.result) != group:
            continue
        points = _errors(run.result)
        numbers = [number for number, _ in points]
        errors = [scale.factor * error for _, error in points]
        mark = "o" if len(errors) <= _FEW_POINTS else ""
        panel.plot(numbers, errors, marker=mark, markersize=4, **style)
        shown += errors
        places.append(np.array(numbers))
    log_scale(panel, shown)
    panel.set_title(f"Validation error of {target}" if target else "Validation error")
    panel.set_ylabel(f"MAE ({scale.unit})" if scale.unit else "MAE")
    _finish(panel, places)


def _finish(panel: Any, places: Sequence[Any]) -> None:
    panel.set_xlabel("epoch")
    ends = [float(numbers[-1]) for numbers in places if len(numbers)]
    starts = [float(numbers[0]) for numbers in places if len(numbers)]
    if ends:
        low, high = min(starts), max(ends)
        margin = 0.02 * (high - low) or 0.5
        panel.set_xlim(low - margin, high + margin)
    panel.xaxis.get_major_locator().set_params(integer=True)


def _validated_groups(runs: Sequence[NamedRun]) -> list[Group]:
    """Return what validation errors are of, in the order of the runs."""
    return list(dict.fromkeys(_group(run.result) for run in runs if _errors(run.result)))


def _group(result: RunResult) -> Group:
    return str(result.dataset.get("target", "")), result.unit


def _errors(result: RunResult) -> list[tuple[int, float]]:
    return [
        (epoch.epoch + 1, epoch.validation_mae)
        for epoch in result.epochs
        if epoch.validation_mae is not None and drawable(epoch.validation_mae)
    ]


def _legend_columns(runs: Sequence[NamedRun], narrow: bool) -> int:
    if narrow:
        return 1
    longest = max((len(run.name) for run in runs), default=0)
    return min(len(runs), 2 if longest > _LONG_NAME else 3) or 1


def _style(theme: Theme, number: int, count: int) -> dict[str, Any]:
    """Return colour, dashes and width of a run: no two among the first 24 look the same.

    Later runs are drawn over earlier ones, and thinner: curves that coincide are both seen.
    """
    share = number / max(count - 1, 1)
    colours = (theme.main, theme.second, theme.third, *_MORE_COLOURS)
    return {
        "color": colours[number % len(colours)],
        "linestyle": _DASHES[number // len(colours) % len(_DASHES)],
        "linewidth": _THICKEST + share * (_THINNEST - _THICKEST),
    }
