from __future__ import annotations

import dataclasses

import pytest
from _drawn_pictures import drawn, legend_texts
from _sample_runs import sample_run

from torchkiln.report._panels import _tick_text
from torchkiln.report._plots import pictures_of


@pytest.mark.parametrize("narrow", [False, True], ids=["wide", "narrow"])
@pytest.mark.parametrize("name", ["loss", "predictions", "throughput"])
def test_nothing_that_is_written_covers_data(name, narrow):
    result = sample_run(num_epochs=3, steps_per_epoch=30, num_molecules=4000)
    (picture,) = (picture for picture in pictures_of(result) if picture.name == name)
    figure = drawn(picture, narrow=narrow)
    renderer = figure.canvas.get_renderer()
    width, height = figure.bbox.width, figure.bbox.height
    for panel in figure.axes:
        inside = panel.get_window_extent(renderer)
        legend = panel.get_legend()
        boxes = [text.get_window_extent(renderer) for text in panel.texts]
        boxes += [] if legend is None else [legend.get_window_extent(renderer)]
        title = panel._left_title.get_window_extent(renderer)
        for box in boxes:
            assert box.y0 >= inside.y1 - 1, "over the data"
            assert box.y1 <= title.y0 + 1, "under the title"
        for box in [*boxes, title]:
            assert 0 <= box.x0 < box.x1 <= width + 1, "off the picture"
            assert box.y1 <= height + 1


def test_legends_have_the_columns_that_the_width_allows():
    result = sample_run(num_epochs=3, steps_per_epoch=30, num_molecules=200)
    wide, narrow = (drawn(pictures_of(result)[0], narrow=narrow) for narrow in (False, True))
    assert wide.axes[0].get_legend()._ncols == len(legend_texts(wide.axes[0])) == 3
    assert narrow.axes[1].get_legend()._ncols == 1


@pytest.mark.parametrize(
    ("ticks", "texts"),
    [
        ([-15_000.0, -10_000.0, 0.0], ["-15,000", "-10,000", "0"]),
        ([0.0, 0.25, 0.5], ["0", "0.25", "0.50"]),
        ([1_000_000.1, 1_000_000.2], ["1,000,000.1", "1,000,000.2"]),
        ([1e12, 2e12, 3e12], ["1e+12", "2e+12", "3e+12"]),
        ([1.0e-12, 1.5e-12, 2.0e-12], ["1.0e-12", "1.5e-12", "2.0e-12"]),
        ([1.0], ["1"]),
    ],
)
def test_ticks_have_the_digits_that_tell_them_apart(ticks, texts):
    assert [_tick_text(tick, ticks) for tick in ticks] == texts


def test_throughput_stops_where_the_epochs_stop_and_the_first_stands_out():
    result = sample_run(num_epochs=3, num_molecules=20)
    panel = drawn(pictures_of(result)[2]).axes[0]
    low, high = panel.get_xlim()
    assert 0.9 < low < 1
    assert 3 < high < 3.1
    assert panel.get_ylim()[0] == 0
    assert [line.get_marker() for line in panel.lines[:2]] == ["o", "o"]
    assert panel.lines[1].get_xdata().tolist() == [1]


def test_one_epoch_has_no_picture_of_its_throughput():
    result = sample_run(num_epochs=1, num_molecules=20)
    assert [picture.name for picture in pictures_of(result)] == ["loss", "predictions"]
    two = dataclasses.replace(result, epochs=2 * result.epochs)
    assert "2 epochs" in pictures_of(two)[2].alt
