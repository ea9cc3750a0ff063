"""Predicted against true values, and how the errors are distributed."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from torchkiln.report._record import RunResult, ValidationResult
from torchkiln.report._theme import Theme
from torchkiln.report._units import error_scale, format_short_error

# From here on single points would cover each other, and a density tells more.
_MANY_POINTS = 3000
# Rare errors beyond these percentiles are counted in words, or the bars would be too coarse.
_SHOWN_PERCENTILES = (0.5, 99.5)


def draw_predictions(
    figure: Any, theme: Theme, result: RunResult, name: str, split: ValidationResult
) -> None:
    """Draw both panels for the finite predictions of `split`."""
    finite = np.isfinite(split.predicted) & np.isfinite(split.true)
    predicted, true = split.predicted[finite], split.true[finite]
    left, right = figure.subplots(1, 2, width_ratios=[1.12, 1])
    _draw_agreement(left, theme, result, name, split, predicted, true)
    _draw_errors(right, theme, result, split, predicted - true)


def _draw_agreement(
    panel: Any,
    theme: Theme,
    result: RunResult,
    name: str,
    split: ValidationResult,
    predicted: npt.NDArray[np.float64],
    true: npt.NDArray[np.float64],
) -> None:
    target, unit = str(result.dataset.get("target", "target")), result.unit
    suffix = f" ({unit})" if unit else ""
    both = np.concatenate([predicted, true])
    low, high = (float(both.min()), float(both.max())) if len(both) else (0.0, 1.0)
    room = 0.04 * (high - low) or 1.0
    limits = (low - room, high + room)
    if len(true) >= _MANY_POINTS:
        cells = panel.hexbin(
            true,
            predicted,
            gridsize=56,
            extent=(*limits, *limits),
            bins="log",
            mincnt=1,
            cmap=theme.density,
            linewidths=0.1,
            zorder=2,
        )
        bar = panel.figure.colorbar(cells, ax=panel, shrink=0.72, pad=0.02, aspect=28)
        bar.set_label(f"{result.counted} in a cell")
        bar.outline.set_visible(False)
        bar.ax.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
        bar.ax.minorticks_off()
    else:
        panel.scatter(true, predicted, s=13, color=theme.main, alpha=0.55, linewidths=0, zorder=2)
    panel.plot(limits, limits, color=theme.second, linewidth=1.2, label="identity", zorder=3)
    panel.set(xlim=limits, ylim=limits, aspect="equal")
    panel.set_title(f"{len(true):,} {result.counted} of the {name} split")
    panel.set_xlabel(f"true {target}{suffix}")
    panel.set_ylabel(f"predicted {target}{suffix}")
    for axis in (panel.xaxis, panel.yaxis):
        axis.get_major_locator().set_params(nbins=6)
        axis.set_major_formatter(lambda value, _: f"{value:,.6g}")
    lines = [
        f"MAE {format_short_error(split.mae, unit)}",
        f"RMSE {format_short_error(split.rmse, unit)}",
    ]
    panel.annotate(
        "\n".join(lines),
        (0.04, 0.96),
        xycoords="axes fraction",
        va="top",
        fontweight="bold",
        linespacing=1.5,
    )
    panel.legend(loc="lower right")


def _draw_errors(
    panel: Any,
    theme: Theme,
    result: RunResult,
    split: ValidationResult,
    errors: npt.NDArray[np.float64],
) -> None:
    scale = error_scale(result.unit)
    shown = scale.factor * errors
    if len(shown):
        reach = float(np.abs(np.percentile(shown, _SHOWN_PERCENTILES)).max()) or 1.0
        bars = int(np.clip(len(shown) ** 0.5, 11, 61)) | 1  # odd: zero is the middle of a bar
        panel.hist(
            shown,
            bins=np.linspace(-reach, reach, bars + 1),
            color=theme.main,
            alpha=0.85,
            zorder=2,
        )
        panel.axvline(0, color=theme.second, linewidth=1.2, zorder=3)
        median = float(np.median(np.abs(errors)))
        beyond = int((np.abs(shown) > reach).sum())
        lines = [
            f"mean {format_short_error(float(errors.mean()), result.unit)}",
            f"median size {format_short_error(median, result.unit)}",
            *([f"{beyond:,} beyond the axis"] if beyond else []),
        ]
        panel.annotate(
            "\n".join(lines),
            (0.03, 0.97),
            xycoords="axes fraction",
            va="top",
            linespacing=1.5,
            fontsize=9,
            color=theme.muted,
        )
        panel.margins(y=0.22)
    unit = f" ({scale.unit})" if scale.unit else ""
    panel.set_title("How the errors are distributed")
    panel.set_xlabel(f"predicted - true{unit}")
    panel.set_ylabel(result.counted)
    panel.xaxis.get_major_locator().set_params(nbins=7)
    panel.xaxis.set_major_formatter(lambda value, _: f"{value:,.6g}")
    panel.yaxis.get_major_locator().set_params(integer=True)
    panel.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    panel.grid(axis="x", visible=False)
