"""Pictures as they were laid out, for tests that ask where things stand."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from torchkiln.report._plots import Picture
from torchkiln.report._theme import LIGHT, Theme, render


def drawn(picture: Picture, *, narrow: bool = False) -> Figure:
    """Return the figure of a picture as it was laid out."""
    kept: list[Figure] = []

    def draw(figure: Figure, theme: Theme) -> None:
        kept.append(figure)
        picture.draw(figure, theme)

    render(draw, LIGHT, picture.narrow_size if narrow else picture.size)
    return kept[0]


def legend_texts(panel: Axes) -> list[str]:
    legend = panel.get_legend()
    return [] if legend is None else [text.get_text() for text in legend.get_texts()]
