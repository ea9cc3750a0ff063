"""Colours and defaults that all pictures of a report share, for light and for dark pages."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

_DPI = 150


@dataclass(frozen=True, slots=True)
class Theme:
    """Colours by role."""

    background: str
    ink: str
    muted: str
    grid: str
    main: str
    second: str
    third: str
    density: str  # name of a matplotlib colour map whose low end is near the background


LIGHT = Theme("#ffffff", "#1f2733", "#697586", "#e4e8ee", "#0b6e99", "#d9730d", "#0f7b6c", "YlGnBu")
DARK = Theme("#151b23", "#e6edf3", "#9aa7b4", "#2b3440", "#5cb8e0", "#f2a65a", "#4cc9b0", "viridis")


def render(draw: Callable[[Any, Theme], None], theme: Theme, size: tuple[float, float]) -> bytes:
    """Return a PNG of `draw(figure, theme)`, `size` in inches.

    Figures are made without pyplot: no window system is touched and no setting of a caller's own
    matplotlib is changed.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with _style(theme):
        figure = Figure(figsize=size, layout="constrained")
        FigureCanvasAgg(figure)
        draw(figure, theme)
        buffer = io.BytesIO()
        figure.savefig(buffer, dpi=_DPI, format="png")
    return buffer.getvalue()


@contextlib.contextmanager
def _style(theme: Theme) -> Iterator[None]:
    import matplotlib

    settings = {
        "figure.facecolor": theme.background,
        "savefig.facecolor": theme.background,
        "axes.facecolor": theme.background,
        "axes.edgecolor": theme.muted,
        "axes.labelcolor": theme.ink,
        "axes.titlecolor": theme.ink,
        "axes.titlelocation": "left",
        "axes.titlesize": 11.5,
        "axes.titleweight": "bold",
        "axes.titlepad": 9,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.grid": True,
        "axes.axisbelow": True,
        "axes.unicode_minus": False,  # as in the numbers that are formatted here
        "grid.color": theme.grid,
        "grid.linewidth": 0.8,
        "text.color": theme.ink,
        "xtick.color": theme.muted,
        "ytick.color": theme.muted,
        "xtick.labelcolor": theme.ink,
        "ytick.labelcolor": theme.ink,
        "legend.frameon": False,
        "font.size": 10,
        "font.family": "DejaVu Sans",  # comes with matplotlib, so every machine draws the same
        "lines.solid_capstyle": "round",
    }
    with matplotlib.rc_context(settings):
        yield
