"""Parts that all panels of a report share: the heading above the axes, and how numbers stand."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

from torchkiln.report._theme import Theme

# Pictures for telephones are narrower than this, in inches.
_NARROW_BELOW = 6.0
_LINE_POINTS = 13.0
_SMALL = 9.0


def is_narrow(figure: Any) -> bool:
    """Tell whether panels must stand below each other, and legends in one column."""
    return bool(figure.get_figwidth() < _NARROW_BELOW)


def head_panel(panel: Any, theme: Theme, title: str, *, remark: str = "") -> None:
    """Put title, remark and legend above the axes, where they cover no data.

    Call it when everything with a label is drawn.

    Args:
        panel: The axes.
        theme: Of the picture.
        title: The first line.
        remark: The second, in small type; empty: there is none.
    """
    handles, labels = panel.get_legend_handles_labels()
    num_columns = _legend_columns(panel, labels)
    num_rows = -(-len(labels) // num_columns) if labels else 0
    height = 3.0
    if labels:
        panel.legend(
            handles,
            labels,
            loc="lower left",
            bbox_to_anchor=(0.0, 1.0),
            ncols=num_columns,
            fontsize=_SMALL,
            borderaxespad=0.0,
            borderpad=0.2,
            handlelength=1.6,
            handletextpad=0.5,
            columnspacing=1.4,
            labelspacing=0.35,
        )
        height += 2.0 + _LINE_POINTS * num_rows
    if remark:
        panel.annotate(
            remark,
            (0.0, 1.0),
            xycoords="axes fraction",
            xytext=(0.0, height + 1.0),
            textcoords="offset points",
            va="bottom",
            fontsize=_SMALL,
            color=theme.muted,
        )
        height += _LINE_POINTS
    panel.set_title(title, pad=height + 3.0)


def _legend_columns(panel: Any, labels: list[str]) -> int:
    """Return how many entries fit beside each other into the width of the panel."""
    if not labels:
        return 1
    figure, place = panel.figure, panel.get_subplotspec()
    share = 1.0 if place is None else len(place.colspan) / place.get_gridspec().ncols
    width = 72 * share * figure.bbox.width / figure.dpi
    entry = 0.55 * _SMALL * max(len(label) for label in labels) + 3.2 * _SMALL
    return max(1, min(len(labels), int(0.88 * width / entry)))


def plain_numbers(axis: Any) -> None:
    """Write the numbers of a linear axis with as many digits as their distance asks for."""
    axis.set_major_formatter(lambda value, _: _tick_text(value, axis.get_majorticklocs()))


def _tick_text(value: float, ticks: Any) -> str:
    distances = [b - a for a, b in pairwise(ticks) if b > a]
    step = min(distances, default=0.0)
    largest = max((abs(tick) for tick in ticks), default=0.0)
    if not (math.isfinite(step) and step > 0 and math.isfinite(largest)):
        return f"{value:,.6g}"
    if abs(value) < 1e-6 * step:
        return "0"
    # Distances are round numbers: 1, 2, 2.5 or 5 times a power of ten.
    power = math.floor(math.log10(step) + 1e-9)
    is_quarter = abs(step / 10.0**power - round(step / 10.0**power)) > 0.05
    decimals = max(0, (1 if is_quarter else 0) - power)
    if largest >= 1e7 or decimals > 5:
        digits = math.floor(math.log10(largest) + 1e-9) - power + (1 if is_quarter else 0)
        return f"{value:.{max(digits, 0)}e}"
    return f"{value:,.{decimals}f}"


def log_scale(panel: Any, values: list[float]) -> None:
    """Use a logarithmic axis, with labels also where the values span less than a decade."""
    from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

    panel.set_yscale("log")
    low, high = min(values), max(values)
    margin = (high / low) ** 0.08 if high > low else 1.5
    panel.set_ylim(low / margin, high * margin)
    decades = math.log10(high / low)
    if decades < 0.7:
        panel.yaxis.set_major_locator(MaxNLocator(5))
        panel.minorticks_off()
    else:
        digits = (1.0,) if decades > 3 else (1.0, 2.0, 5.0)
        panel.yaxis.set_major_locator(LogLocator(subs=digits, numticks=12))
    panel.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.6g}"))
    panel.yaxis.set_minor_formatter(NullFormatter())


def stop_at(panel: Any, first: int, last: int) -> None:
    """End the horizontal axis where what is counted ends, with ticks at whole numbers."""
    room = 0.02 * (last - first) or 0.5
    panel.set_xlim(first - room, last + room)
    if first == last:
        panel.set_xticks([first])
    else:
        panel.xaxis.get_major_locator().set_params(integer=True)
    plain_numbers(panel.xaxis)
