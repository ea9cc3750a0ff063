"""Predicted against true values, how the errors are distributed, and where they lie.

Most of a total energy follows from the formula alone, and differs by thousands of eV from molecule
to molecule. On axes of that size every model looks perfect. So where the linear baseline explains
nearly all of a target, the agreement is drawn relative to it: what is left is what a model must
learn from the structure. The errors have panels of their own in any case.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from torchkiln.report._panels import head_panel, is_narrow, plain_numbers
from torchkiln.report._record import RunResult, ValidationResult
from torchkiln.report._theme import Theme
from torchkiln.report._units import error_scale, format_count, format_short_error, short_name

Array = npt.NDArray[np.float64]
# From here on single points would cover each other, and a density tells more.
_MANY_POINTS = 3000
# Up to here points have room to be larger.
_FEW_POINTS = 50
# Rare errors beyond these percentiles are counted in words, or the bars would be too coarse.
_SHOWN_PERCENTILES = (0.5, 99.5)
_ENOUGH_FOR_RARE = 200
# From this share of the variance on, what the baseline explains hides what it does not.
_HIDING_SHARE = 0.9


class _Shown(NamedTuple):
    """The finite part of a split; `reference` is None if it is not known."""

    predicted: Array
    true: Array
    reference: Array | None

    @property
    def errors(self) -> Array:
        return self.predicted - self.true


def is_relative(split: ValidationResult) -> bool:
    """Tell whether the agreement is drawn relative to the linear baseline."""
    shown = _finite(split)
    if shown.reference is None or not len(shown.true):
        return False
    spread = float(shown.true.var())
    left = float((shown.true - shown.reference).var())
    return spread > 0 and 1 - left / spread >= _HIDING_SHARE


def draw_predictions(
    figure: Any, theme: Theme, result: RunResult, name: str, split: ValidationResult
) -> None:
    """Draw agreement, distribution of the errors, and the errors against the true values."""
    shown = _finite(split)
    if is_narrow(figure):
        agreement, distribution, residuals = figure.subplots(3, 1, height_ratios=[1.5, 1, 1])
    else:
        grid = figure.add_gridspec(2, 2, width_ratios=[1, 1.12], height_ratios=[1.55, 1])
        agreement, distribution = figure.add_subplot(grid[0, 0]), figure.add_subplot(grid[0, 1])
        residuals = figure.add_subplot(grid[1, :])
    _draw_agreement(agreement, theme, result, name, split, shown)
    _draw_distribution(distribution, theme, result, shown)
    _draw_residuals(residuals, theme, result, split, shown)


def _finite(split: ValidationResult) -> _Shown:
    finite = np.isfinite(split.predicted) & np.isfinite(split.true)
    reference = split.reference
    if reference is not None:
        reference = reference[finite]
        if not np.isfinite(reference).all():
            reference = None
    return _Shown(split.predicted[finite], split.true[finite], reference)


def _draw_agreement(
    panel: Any,
    theme: Theme,
    result: RunResult,
    name: str,
    split: ValidationResult,
    shown: _Shown,
) -> None:
    target, unit = short_name(result.dataset.get("target", "target")), result.unit
    suffix = f" ({unit})" if unit else ""
    true, predicted = shown.true, shown.predicted
    if is_relative(split) and shown.reference is not None:
        true, predicted = true - shown.reference, predicted - shown.reference
        suffix += "\nrelative to the linear baseline"
    limits = _limits(np.concatenate([predicted, true]))
    _draw_points(panel, theme, true, predicted, (*limits, *limits), gridsize=56)
    panel.plot(limits, limits, color=theme.ink, linewidth=0.9, label="predicted = true", zorder=3)
    panel.set(xlim=limits, ylim=limits, aspect="equal", anchor="W")
    panel.set_xlabel(f"true {target}{suffix}")
    panel.set_ylabel(f"predicted {target}{suffix}")
    for axis in (panel.xaxis, panel.yaxis):
        axis.get_major_locator().set_params(nbins=6)
        plain_numbers(axis)
    errors = ", ".join(
        f"{kind} {format_short_error(value, unit)}"
        for kind, value in (("MAE", split.mae), ("RMSE", split.rmse))
    )
    title = f"{format_count(len(shown.true), result.counted)} of the {name} split"
    head_panel(panel, theme, title, remark=errors)


def _draw_distribution(panel: Any, theme: Theme, result: RunResult, shown: _Shown) -> None:
    scale = error_scale(result.unit)
    errors = scale.factor * shown.errors
    unit, beyond = f" ({scale.unit})" if scale.unit else "", 0
    if len(errors):
        others = None if shown.reference is None else scale.factor * (shown.reference - shown.true)
        bins = _bins(errors, others)
        beyond = int(((errors < bins[0]) | (errors > bins[-1])).sum())
        label = f"model: half are within {_median_size(errors, scale.unit)}"
        panel.hist(errors, bins=bins, color=theme.main, alpha=0.85, zorder=2, label=label)
        if others is not None:
            label = f"linear baseline: half are within {_median_size(others, scale.unit)}"
            panel.hist(
                others,
                bins=bins,
                histtype="step",
                color=theme.second,
                linewidth=1.6,
                zorder=4,
                label=label,
            )
        panel.axvline(0, color=theme.ink, linewidth=0.9, zorder=3)
        panel.set_xlim(bins[0], bins[-1])
    label = f"error: predicted - true{unit}"
    if beyond:
        label += f"\nthe model has {format_count(beyond, 'errors')} beyond this axis"
    panel.set_xlabel(label)
    panel.set_ylabel(result.counted)
    panel.xaxis.get_major_locator().set_params(nbins=7)
    panel.yaxis.get_major_locator().set_params(integer=True)
    plain_numbers(panel.xaxis)
    plain_numbers(panel.yaxis)
    panel.grid(axis="x", visible=False)
    head_panel(panel, theme, "How large the errors are")


def _bins(errors: Array, others: Array | None) -> Array:
    """Return the edges of the bars: where the model's errors are, and zero in the middle of one.

    A model that is off on one side leaves room for the middle of the baseline's errors, `others`,
    so that both are seen.
    """
    ends = _SHOWN_PERCENTILES if len(errors) >= _ENOUGH_FOR_RARE else (0, 100)
    low, high = (float(end) for end in np.percentile(errors, ends))
    reach = max(abs(low), abs(high))
    middle = 0.1 * reach
    if others is not None:
        middle = min(max(middle, 2 * float(np.median(np.abs(others)))), reach)
    low, high = min(low, -middle), max(high, middle)
    if not high > low:  # no errors at all
        return np.arange(-2.5, 3.0)
    width = (high - low) / int(np.clip(len(errors) ** 0.5, 11, 61))
    first, last = np.floor(low / width + 0.5), np.floor(high / width + 0.5)
    return np.asarray(width * (np.arange(first, last + 2) - 0.5))


def _median_size(errors: Array, unit: str) -> str:
    return format_short_error(float(np.median(np.abs(errors))), unit)


def _draw_residuals(
    panel: Any, theme: Theme, result: RunResult, split: ValidationResult, shown: _Shown
) -> None:
    """Draw the error of each sample, rare ones included, beside what the baseline reaches."""
    scale = error_scale(result.unit)
    errors = scale.factor * shown.errors
    across = _limits(shown.true)
    size = 0.0
    if split.baseline_mae is not None and np.isfinite(split.baseline_mae):
        size = scale.factor * split.baseline_mae
    largest = float(np.abs(errors).max()) if len(errors) else 0.0
    # The baseline's lines are drawn where they do not make the errors small.
    levels = np.array([0.0, size, -size] if size < largest else [0.0])
    upright = _limits(np.concatenate([errors, levels]))
    cells = (45, 15) if is_narrow(panel.figure) else (90, 15)
    _draw_points(panel, theme, shown.true, errors, (*across, *upright), gridsize=cells)
    panel.axhline(0, color=theme.ink, linewidth=0.9, zorder=3)
    for level in levels[1:]:
        # One entry of the legend stands for both lines.
        text = format_short_error(size / scale.factor, result.unit)
        label = f"MAE of the linear baseline: {text}" if level > 0 else None
        panel.axhline(
            level, color=theme.second, linestyle="--", linewidth=1.2, zorder=3, label=label
        )
    panel.set(xlim=across, ylim=upright)
    unit = f" ({result.unit})" if result.unit else ""
    panel.set_xlabel(f"true {short_name(result.dataset.get('target', 'target'))}{unit}")
    panel.set_ylabel(f"error ({scale.unit})" if scale.unit else "error")
    panel.yaxis.get_major_locator().set_params(nbins=6)
    panel.xaxis.get_major_locator().set_params(nbins=5 if is_narrow(panel.figure) else 9)
    plain_numbers(panel.xaxis)
    plain_numbers(panel.yaxis)
    colours = f"stronger colour: more {result.counted}" if len(errors) >= _MANY_POINTS else ""
    head_panel(panel, theme, "Where the errors lie", remark=colours)


def _draw_points(
    panel: Any,
    theme: Theme,
    across: Array,
    up: Array,
    extent: tuple[float, float, float, float],
    *,
    gridsize: int | tuple[int, int],
) -> None:
    """Draw single points, or how many there are in each cell."""
    if len(across) < _MANY_POINTS:
        size = 30 if len(across) <= _FEW_POINTS else 13
        panel.scatter(across, up, s=size, color=theme.main, alpha=0.55, linewidths=0, zorder=2)
        return
    from matplotlib.colors import LinearSegmentedColormap

    panel.hexbin(
        across,
        up,
        gridsize=gridsize,
        extent=extent,
        bins="log",
        mincnt=1,
        cmap=LinearSegmentedColormap.from_list("density", list(theme.density)),
        linewidths=0.1,
        zorder=2,
    )


def _limits(values: Array) -> tuple[float, float]:
    """Return where an axis ends: where the values end, with a little room for the points."""
    if not len(values):
        return 0.0, 1.0
    low, high = float(values.min()), float(values.max())
    room = 0.04 * (high - low) or abs(low) * 1e-3 or 1.0
    return low - room, high + room
