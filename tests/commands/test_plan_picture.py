from __future__ import annotations

import numpy as np
import pytest
from matplotlib.figure import Figure

from torchkiln.commands._plan_picture import _SIZE, _draw, _ticks
from torchkiln.commands._plan_report import PlanReport
from torchkiln.packing import pack
from torchkiln.report._theme import LIGHT, render


def report_of(nodes: np.ndarray, slots: int = 64) -> PlanReport:
    sizes = {"nodes": nodes, "edges": 4 * nodes}
    plan = pack(sizes, {"nodes": slots, "edges": 4 * slots, "graphs": 20}, algorithm="best_fit")
    padded = {axis: float(column.mean() / column.max()) for axis, column in sizes.items()}
    curve = [(size, {"nodes": 0.9, "edges": 0.95}) for size in (slots // 2, slots, 2 * slots)]
    return PlanReport(
        "some", sizes, {"best_fit": plan}, {"best_fit": 0.1}, "best_fit", padded, curve
    )


def figure_of(report: PlanReport) -> Figure:
    kept: list[Figure] = []

    def draw(figure, theme):
        kept.append(figure)
        _draw(figure, theme, report)

    assert render(draw, LIGHT, _SIZE).startswith(b"\x89PNG")
    return kept[0]


SIZES = np.random.default_rng(0).integers(5, 20, 300)


def test_legends_stand_above_the_data():
    figure = figure_of(report_of(SIZES))
    assert len(figure.axes) == 4
    renderer = figure.canvas.get_renderer()
    for panel in figure.axes:
        legend = panel.get_legend().get_window_extent(renderer)
        assert legend.y0 >= panel.get_window_extent(renderer).y1 - 1
        assert legend.y1 <= panel._left_title.get_window_extent(renderer).y0 + 1
        assert not panel.texts


def test_axes_stop_where_the_data_stop():
    nodes, _, fill, curve = figure_of(report_of(SIZES)).axes
    assert nodes.get_xlim() == (4.5, 19.5)
    assert fill.get_xlim() == (0, 100)
    low, high = curve.get_ylim()
    assert 89 < low < 90
    assert 95 < high < 96
    assert curve.get_xlim()[1] == pytest.approx(1.07 * 128)


def test_graphs_of_one_size_are_a_bar_and_not_a_wall():
    nodes = figure_of(report_of(np.full(40, 7))).axes[0]
    assert nodes.get_xlim() == (5.5, 8.5)


def test_there_are_at_least_two_ticks():
    assert _ticks(60, 4000) == [100, 200, 500, 1000, 2000]
    assert _ticks(919, 1004) == [919, 1004]
