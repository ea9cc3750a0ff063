"""Samples per second, epoch by epoch."""

from __future__ import annotations

from typing import Any

from torchkiln.report._record import RunResult
from torchkiln.report._theme import Theme
from torchkiln.report._units import format_rate

# More bars than this would be thinner than their gaps.
_MAX_BARS = 60


def draw_throughput(figure: Any, theme: Theme, result: RunResult) -> None:
    """Draw a bar for every epoch, or a line if there are many; the first is not in the median."""
    panel = figure.subplots()
    numbers = [epoch.epoch + 1 for epoch in result.epochs]
    rates = [epoch.samples_per_s for epoch in result.epochs]
    if len(rates) <= _MAX_BARS:
        bars = panel.bar(numbers, rates, width=0.72, color=theme.main, zorder=2)
        if len(rates) > 1:
            bars[0].set_alpha(0.45)
    else:
        panel.plot(numbers, rates, color=theme.main, linewidth=1.6, zorder=2)
    median = result.samples_per_s
    if median is not None:
        without = " without the first epoch" if len(rates) > 1 else ""
        label = f"median{without}: {format_rate(median, result.counted)}"
        panel.axhline(median, color=theme.second, linewidth=1.4, label=label, zorder=3)
        panel.legend(loc="upper right")
    panel.set_ylim(0, 1.25 * max([*rates, 1e-9]))
    panel.set_xlim(min(numbers) - 0.7, max(max(numbers) + 0.7, min(numbers) + 3))
    panel.set_title("Training throughput")
    panel.set_xlabel("epoch")
    panel.set_ylabel(f"{result.counted}/s")
    panel.xaxis.get_major_locator().set_params(integer=True)
    panel.yaxis.set_major_formatter(lambda value, _: f"{value:,.6g}")
    panel.grid(axis="x", visible=False)
