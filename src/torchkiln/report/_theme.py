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
    density: tuple[str, ...]  # few to many; also a single sample stands out from the background


LIGHT = Theme(
    background="#ffffff",
    ink="#1f2733",
    muted="#697586",
    grid="#e4e8ee",
    main="#0b6e99",
    second="#d9730d",
    third="#0f7b6c",
    density=("#9cc9de", "#0b6e99", "#03202d"),
)
DARK = Theme(
    background="#151b23",
    ink="#e6edf3",
    muted="#9aa7b4",
    grid="#2b3440",
    main="#5cb8e0",
    second="#f2a65a",
    third="#4cc9b0",
    density=("#2f6a86", "#5cb8e0", "#f2fbff"),
)


def render(
    draw: Callable[[Any, Theme], None],
    theme: Theme,
    size: tuple[float, float],
    *,
    file_format: str = "png",
) -> bytes:
    """Return a picture of `draw(figure, theme)`, `size` in inches.

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
        figure.savefig(buffer, dpi=_DPI, format=file_format)
    return buffer.getvalue()


def with_few_colours(png: bytes) -> bytes:
    """Return the PNG with a palette of 256 colours: a third of the size, and no visible change.

    For curves and points. Photographs and maps of many colours need all that they have.
    """
    from PIL import Image

    buffer = io.BytesIO()
    with Image.open(io.BytesIO(png)) as picture:
        picture.convert("RGB").quantize(256).save(buffer, format="png", optimize=True)
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
        "figure.constrained_layout.hspace": 0.07,
    }
    with matplotlib.rc_context(settings):
        yield
