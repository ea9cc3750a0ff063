"""The picture of `torchkiln plan`: what graphs there are, how batches fill, what else would do."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from torchkiln.commands._plan_report import PlanReport
from torchkiln.core import atomic_path

_COLORS = ("#0b6e99", "#d9730d", "#0f7b6c", "#6940a5")
_GRAY = "#8a8a8a"
_MAX_POINTS = 1500
_BARS = 60


def draw_plan(report: PlanReport, path: Path) -> None:
    """Write the picture; the format follows the suffix."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    axes = list(report.sizes)
    colors = dict(zip(axes, (_COLORS * len(axes))[: len(axes)], strict=True))
    style = {"axes.spines.top": False, "axes.spines.right": False, "font.size": 10}
    with pyplot.rc_context(style):
        figure = pyplot.figure(figsize=(12, 7.6), layout="constrained")
        top, bottom = figure.subfigures(2, 1, height_ratios=[1, 1.15], hspace=0.06)
        figure.suptitle(_headline(report), fontsize=13, x=0.01, ha="left")
        _draw_histograms(top, report, colors)
        fill, curve = bottom.subplots(1, 2, width_ratios=[1.25, 1])
        _draw_fill(fill, report, colors)
        _draw_curve(curve, report, colors)
        with atomic_path(path) as temporary:
            figure.savefig(temporary, dpi=130, format=path.suffix.lstrip("."))
        pyplot.close(figure)


def _headline(report: PlanReport) -> str:
    plan = report.plan
    sizes = ", ".join(f"{size:,} {axis}" for axis, size in plan.slots.items())
    first = next(iter(report.sizes))
    return (
        f"{report.title}: {plan.num_graphs:,} graphs fill {len(plan):,} batches of {sizes}\n"
        f"{plan.efficiency[first]:.1%} of the slots for {first} are real "
        f"(padding every graph to the largest: {report.padded[first]:.1%})"
    )


def _draw_histograms(figure: Any, report: PlanReport, colors: dict[str, str]) -> None:
    for panel, axis in zip(
        np.atleast_1d(figure.subplots(1, len(report.sizes))), report.sizes, strict=True
    ):
        column = report.sizes[axis]
        largest, mean = int(column.max()), float(column.mean())
        # Whole numbers per bar, and an even number of them for sizes that are all even.
        width = -(-largest // _BARS) or 1
        width += width % 2 if not (column % 2).any() else 0
        bins = np.arange(-0.5, largest + width, width)
        counts, _, _ = panel.hist(column, bins=bins, color=colors[axis], alpha=0.85)
        heavy = largest > 8 * max(np.median(column), 1)
        if heavy:  # a handful of giants would be invisible on a linear scale
            panel.set_yscale("log")
        panel.axvline(mean, color="black", linewidth=1)
        panel.axvline(largest, color=_GRAY, linewidth=1, linestyle="--")
        near_right = mean > 0.7 * largest
        panel.annotate(
            f" mean {mean:,.1f} ",
            (mean, 1.0),
            xycoords=("data", "axes fraction"),
            ha="right" if near_right else "left",
            va="top",
        )
        panel.annotate(
            f" largest {largest:,} ",
            (largest, 0.82),
            xycoords=("data", "axes fraction"),
            ha="right",
            va="top",
            color=_GRAY,
        )
        panel.set_title(f"How many {axis} a graph has", loc="left")
        panel.set_xlabel(f"{axis} in a graph")
        panel.set_ylabel("graphs")
        panel.set_ylim(top=float(counts.max()) * (3 if heavy else 1.12))
        panel.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
        panel.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")


def _draw_fill(panel: Any, report: PlanReport, colors: dict[str, str]) -> None:
    plan = report.plan
    for axis, color in colors.items():
        share = plan.used[axis] / max(plan.slots[axis], 1)
        share = np.sort(share)[::-1]
        batches = np.linspace(0, len(share) - 1, min(len(share), _MAX_POINTS)).round().astype(int)
        panel.plot(
            100 * (batches + 0.5) / len(share),
            100 * share[batches],
            color=color,
            linewidth=2,
            label=f"{axis}: {plan.efficiency[axis]:.1%} on average",
        )
    for axis, color in colors.items():
        level = 100 * report.padded[axis]
        label = f"{axis}, every graph padded to the largest: {level:.1f}%"
        panel.axhline(level, color=color, linestyle=":", linewidth=1.5, label=label)
    panel.set_ylim(0, 104)
    panel.set_xlim(0, 100)
    panel.set_title(f"How full the {len(plan):,} batches are ({report.chosen})", loc="left")
    panel.set_xlabel("batches, fullest first (%)")
    panel.set_ylabel("slots that hold real data (%)")
    levels = sorted([0.0, *(100 * share for share in report.padded.values()), 90.0])
    low, high = max(pairwise(levels), key=lambda gap: gap[1] - gap[0])
    panel.legend(loc="center left", bbox_to_anchor=(0.03, (low + high) / 208), frameon=False)


def _draw_curve(panel: Any, report: PlanReport, colors: dict[str, str]) -> None:
    first = next(iter(report.sizes))
    slots = [size for size, _ in report.curve]
    for axis, color in colors.items():
        shares = [100 * efficiency[axis] for _, efficiency in report.curve]
        panel.plot(slots, shares, color=color, marker="o", markersize=4, label=axis)
    here = report.plan.slots[first]
    panel.axvline(here, color="black", linewidth=1)
    panel.annotate(
        f" this plan: {here:,} ",
        (here, 0.03),
        xycoords=("data", "axes fraction"),
        ha="left",
    )
    panel.set_xscale("log")
    ticks = _ticks(min([*slots, here]), max([*slots, here]))
    panel.set_xticks(ticks, [f"{tick:,}" for tick in ticks])
    panel.minorticks_off()
    panel.set_title("Would another batch size do better?", loc="left")
    panel.set_xlabel(f"slots for {first} in a batch")
    panel.set_ylabel("slots that hold real data (%)")
    lows = [100 * min(efficiency.values()) for _, efficiency in report.curve]
    panel.set_ylim(min([*lows, 95]) - 2, 100.5)
    panel.legend(loc="center right", frameon=False)


def _ticks(low: int, high: int) -> list[int]:
    """Return round numbers between two limits, evenly spaced on a logarithmic scale."""
    steps = [factor * 10**power for power in range(10) for factor in (1, 2, 5)]
    return [step for step in steps if low * 0.9 <= step <= high * 1.1]
