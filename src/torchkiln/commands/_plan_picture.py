"""The picture of `torchkiln plan`: what graphs there are, how batches fill, what else would do."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from torchkiln.commands._plan_report import PlanReport
from torchkiln.core import write_atomic
from torchkiln.report._panels import head_panel, plain_numbers
from torchkiln.report._theme import LIGHT, Theme, render
from torchkiln.report._units import short_name

_FOURTH = "#6940a5"
_MAX_POINTS = 1500
_BARS = 60
_SIZE = (12.0, 8.2)


def draw_plan(report: PlanReport, path: Path) -> None:
    """Write the picture; the format follows the suffix."""
    picture = render(
        partial(_draw, report=report), LIGHT, _SIZE, file_format=path.suffix.lstrip(".")
    )
    write_atomic(path, picture)


def _draw(figure: Any, theme: Theme, report: PlanReport) -> None:
    axes = list(report.sizes)
    palette = (theme.main, theme.second, theme.third, _FOURTH)
    colors = dict(zip(axes, (palette * len(axes))[: len(axes)], strict=True))
    top, bottom = figure.subfigures(2, 1, height_ratios=[1, 1.15], hspace=0.06)
    figure.suptitle(_headline(report), fontsize=13, x=0.01, ha="left")
    _draw_histograms(top, theme, report, colors)
    fill, curve = bottom.subplots(1, 2, width_ratios=[1.25, 1])
    _draw_fill(fill, theme, report, colors)
    _draw_curve(curve, theme, report, colors)


def _headline(report: PlanReport) -> str:
    plan = report.plan
    sizes = ", ".join(f"{size:,} {axis}" for axis, size in plan.slots.items())
    first = next(iter(report.sizes))
    title = short_name(report.title, 60)
    return (
        f"{title}: {plan.num_graphs:,} graphs fill {len(plan):,} batches of {sizes}\n"
        f"{plan.efficiency[first]:.1%} of the slots for {first} are real "
        f"(padding every graph to the largest: {report.padded[first]:.1%})"
    )


def _draw_histograms(figure: Any, theme: Theme, report: PlanReport, colors: dict[str, str]) -> None:
    panels = np.atleast_1d(figure.subplots(1, len(report.sizes)))
    for panel, axis in zip(panels, report.sizes, strict=True):
        column = report.sizes[axis]
        smallest, largest = int(column.min()), int(column.max())
        # Whole numbers per bar, and an even number of them for sizes that are all even.
        width = -(-(largest - smallest + 1) // _BARS)
        width += width % 2 if not (column % 2).any() else 0
        bins = np.arange(smallest - 0.5, largest + width, width)
        panel.hist(column, bins=bins, color=colors[axis], alpha=0.85, zorder=2)
        is_heavy = largest > 8 * max(np.median(column), 1)
        if is_heavy:  # a handful of giants would be invisible on a linear scale
            panel.set_yscale("log")
            panel.set_ylim(bottom=0.7)
        mean = float(column.mean())
        label = f"mean: {mean:,.1f}"
        panel.axvline(mean, color=theme.ink, linewidth=1.2, zorder=3, label=label)
        panel.axvline(
            largest,
            color=theme.muted,
            linewidth=1.2,
            linestyle="--",
            zorder=3,
            label=f"largest: {largest:,}",
        )
        # A single size has a bar of its own width on either side to be told from a wall.
        room = width if len(bins) == 2 else 0
        panel.set_xlim(bins[0] - room, bins[-1] + room)
        panel.set_xlabel(f"{axis} in a graph")
        panel.set_ylabel("graphs")
        panel.xaxis.get_major_locator().set_params(integer=True)
        panel.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
        plain_numbers(panel.xaxis)
        panel.grid(axis="x", visible=False)
        head_panel(panel, theme, f"How many {axis} a graph has")


def _draw_fill(panel: Any, theme: Theme, report: PlanReport, colors: dict[str, str]) -> None:
    plan = report.plan
    lowest = 100.0
    for axis, color in colors.items():
        share = np.sort(plan.used[axis] / max(plan.slots[axis], 1))[::-1]
        shown = np.linspace(0, len(share) - 1, min(len(share), _MAX_POINTS)).round().astype(int)
        panel.stairs(
            100 * share[shown],
            np.linspace(0, 100, len(shown) + 1),
            baseline=None,
            color=color,
            linewidth=2,
            label=f"{axis}: {plan.efficiency[axis]:.1%} on average",
        )
        level = 100 * report.padded[axis]
        label = f"{axis}, every graph padded to the largest: {level:.1f}%"
        panel.axhline(level, color=color, linestyle=":", linewidth=1.5, label=label)
        lowest = min(lowest, level, 100 * float(share[-1]))
    panel.set_ylim(max(0.0, lowest - 4), 102)
    panel.set_xlim(0, 100)
    panel.set_xlabel("batches, fullest first (%)")
    panel.set_ylabel("slots that hold real data (%)")
    head_panel(panel, theme, f"How full the {len(plan):,} batches are ({report.chosen})")


def _draw_curve(panel: Any, theme: Theme, report: PlanReport, colors: dict[str, str]) -> None:
    first = next(iter(report.sizes))
    slots = [size for size, _ in report.curve]
    for axis, color in colors.items():
        shares = [100 * efficiency[axis] for _, efficiency in report.curve]
        panel.plot(slots, shares, color=color, marker="o", markersize=4, label=axis)
    here = report.plan.slots[first]
    panel.axvline(here, color=theme.ink, linewidth=1.2, label=f"this plan: {here:,} {first}")
    panel.set_xscale("log")
    smallest, largest = min([*slots, here]), max([*slots, here])
    panel.set_xlim(0.93 * smallest, 1.07 * largest)
    ticks = _ticks(smallest, largest)
    panel.set_xticks(ticks, [f"{tick:,}" for tick in ticks])
    panel.minorticks_off()
    panel.set_xlabel(f"slots for {first} in a batch")
    panel.set_ylabel("slots that hold real data (%)")
    shares = [100 * share for _, efficiency in report.curve for share in efficiency.values()]
    low, high = min(shares, default=0.0), max(shares, default=100.0)
    room = max(0.08 * (high - low), 0.5)
    panel.set_ylim(low - room, min(high + room, 100.5))
    plain_numbers(panel.yaxis)
    head_panel(panel, theme, "Would another batch size do better?")


def _ticks(low: int, high: int) -> list[int]:
    """Return round numbers between two limits, evenly spaced on a logarithmic scale."""
    steps = [factor * 10**power for power in range(10) for factor in (1, 2, 5)]
    found = [step for step in steps if low * 0.93 <= step <= high * 1.07]
    return found if len(found) > 1 else sorted({low, high})
