"""Samples per second, epoch by epoch."""

from __future__ import annotations

import math
from typing import Any

from torchkiln.report._panels import head_panel, plain_numbers, stop_at
from torchkiln.report._record import RunResult
from torchkiln.report._theme import Theme
from torchkiln.report._units import format_rate

# More points than this would run into each other.
_MAX_MARKED = 60


def draw_throughput(figure: Any, theme: Theme, result: RunResult) -> None:
    """Draw a point for every epoch; the first is hollow, as it is not in the median."""
    panel = figure.subplots()
    numbers = [epoch.epoch + 1 for epoch in result.epochs]
    rates = [epoch.samples_per_s for epoch in result.epochs]
    marker = {"marker": "o", "markersize": 5.0} if len(rates) <= _MAX_MARKED else {}
    panel.plot(
        numbers, rates, color=theme.main, linewidth=1.6, zorder=3, label="an epoch", **marker
    )
    if len(rates) > 1:
        panel.plot(
            numbers[:1],
            rates[:1],
            color=theme.main,
            marker="o",
            markersize=6.5,
            markerfacecolor=theme.background,
            linewidth=0,
            zorder=4,
            label="the first epoch, which warms caches up",
        )
    median = result.samples_per_s
    if median is not None and math.isfinite(median):
        without = " without the first" if len(rates) > 1 else ""
        label = f"median{without}: {format_rate(median, result.counted)}"
        panel.axhline(median, color=theme.second, linewidth=1.4, label=label, zorder=2)
    highest = max((rate for rate in rates if math.isfinite(rate)), default=0.0)
    panel.set_ylim(0, 1.08 * highest or 1.0)
    stop_at(panel, numbers[0], numbers[-1])
    head_panel(panel, theme, "Training throughput")
    panel.set_xlabel("epoch")
    panel.set_ylabel(f"{result.counted}/s")
    plain_numbers(panel.yaxis)
