from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from _sample_runs import sample_run
from matplotlib.figure import Figure

from torchkiln.report import RunResult
from torchkiln.report._loss_plot import _MAX_POINTS, draw_loss, smoothed
from torchkiln.report._theme import LIGHT


def panels(result: RunResult) -> list:
    figure = Figure()
    draw_loss(figure, LIGHT, result)
    return figure.axes


def curve(panel, label: str):
    return next(line for line in panel.lines if line.get_label() == label)


def test_steps_lie_where_their_epochs_are():
    steps = curve(panels(sample_run(num_epochs=4, steps_per_epoch=10))[0], "single steps")
    assert steps.get_xdata()[9] == pytest.approx(1.0)
    assert steps.get_xdata()[-1] == pytest.approx(4.0)


def test_an_interrupted_epoch_takes_less_room():
    whole = sample_run(num_epochs=2, steps_per_epoch=10)
    half = dataclasses.replace(whole.epochs[1], samples=whole.epochs[1].samples // 2)
    result = dataclasses.replace(
        whole,
        status="interrupted",
        dataset={},
        epochs=[whole.epochs[0], half],
        steps=whole.steps[:15],
    )
    assert curve(panels(result)[0], "single steps").get_xdata()[-1] == pytest.approx(1.5)


def test_updates_of_filler_do_not_cost_the_logarithmic_axis():
    result = sample_run(num_epochs=1, steps_per_epoch=30)
    result.steps[-1] = (29, 0.0)
    top = panels(result)[0]
    assert top.get_yscale() == "log"
    assert len(curve(top, "single steps").get_xdata()) == 29


def test_negative_losses_are_drawn_on_a_linear_axis():
    result = sample_run(num_epochs=1, steps_per_epoch=30)
    result.steps[-1] = (29, -1.0)
    top = panels(result)[0]
    assert top.get_yscale() == "linear"
    assert curve(top, "single steps").get_ydata()[-1] == -1.0


def test_the_first_loss_that_is_not_finite_is_marked():
    result = sample_run(num_epochs=2, steps_per_epoch=10)
    result.steps[15:] = [(step, float("nan")) for step in range(15, 20)]
    mark = curve(panels(result)[0], "loss not finite")
    assert mark.get_xdata()[0] == pytest.approx(1.6)


def test_validation_errors_are_shown_in_mev_beside_the_baseline_of_their_split():
    bottom = panels(sample_run(num_epochs=3, num_molecules=20))[1]
    assert bottom.lines[0].get_ydata()[0] == pytest.approx(950)
    assert bottom.lines[1].get_ydata()[0] == pytest.approx(441)


def test_many_steps_are_thinned_out():
    result = sample_run(num_epochs=1, steps_per_epoch=3 * _MAX_POINTS, num_molecules=20)
    assert len(curve(panels(result)[0], "single steps").get_xdata()) == _MAX_POINTS


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_smoothing_keeps_a_constant_and_follows_without_delay(sign):
    np.testing.assert_allclose(smoothed(np.full(50, sign * 3.0), 4.0), sign * 3.0)
    step = np.where(np.arange(100) < 50, 1.0, 4.0) * sign
    smooth = smoothed(step, 4.0)
    assert smooth[49:51].mean() == pytest.approx(sign * 2.5, rel=0.02)


def test_a_few_steps_have_marks_of_their_own_and_many_have_not():
    few = curve(panels(sample_run(num_epochs=1, steps_per_epoch=3))[0], "single steps")
    assert few.get_marker() == "o"
    assert few.get_alpha() == 1.0
    many = curve(panels(sample_run(num_epochs=3, steps_per_epoch=100))[0], "single steps")
    assert many.get_marker() == "None"


def test_the_axis_stops_where_the_run_stopped():
    whole = sample_run(num_epochs=2, steps_per_epoch=10)
    part = dataclasses.replace(whole.epochs[1], samples=whole.epochs[1].samples // 4)
    result = dataclasses.replace(
        whole,
        status="interrupted",
        dataset={},
        epochs=[whole.epochs[0], part],
        steps=whole.steps[:13],
    )
    top, bottom = panels(result)
    assert 1.25 < top.get_xlim()[1] < 1.3
    assert curve(top, "mean of an epoch").get_xdata()[1] == pytest.approx(1.125)
    assert bottom.lines[0].get_xdata()[-1] == pytest.approx(1.25)


def test_a_run_that_stopped_in_its_first_epoch_does_not_look_like_a_whole_one():
    whole = sample_run(num_epochs=1, steps_per_epoch=10)
    dataset = {"sizes": {"train": 4 * whole.epochs[0].samples}}
    result = dataclasses.replace(whole, status="interrupted", dataset=dataset)
    assert panels(result)[0].get_xlim()[1] == pytest.approx(0.25, rel=0.05)


def test_the_baseline_of_another_split_is_called_so():
    result = sample_run(num_epochs=2, num_molecules=20)
    labels = [line.get_label() for line in panels(result)[1].lines]
    assert labels[1] == "linear baseline of this split: 441 meV"
    only_test = dataclasses.replace(result, validation=None)
    labels = [line.get_label() for line in panels(only_test)[1].lines]
    assert labels[1] == "linear baseline of the test split: 437 meV"


def test_a_long_name_is_shortened_in_the_middle():
    result = sample_run(num_epochs=2, num_molecules=20)
    result.dataset["target"] = "isotropic_polarizability_of_the_cluster_at_298K"
    title = panels(result)[1].get_title()
    assert len(title) < 50
    assert title.startswith("Validation error of isotropic_po")
    assert title.endswith("298K")


def test_the_epoch_whose_weights_are_kept_is_ringed():
    result = dataclasses.replace(sample_run(num_epochs=3, num_molecules=20), best_epoch=1)
    ring = next(line for line in panels(result)[1].lines if "kept" in str(line.get_label()))
    assert ring.get_xdata() == [2.0]
    assert ring.get_label() == "weights that are kept: 459 meV"
    unknown = dataclasses.replace(result, best_epoch=None)
    assert not any("kept" in str(line.get_label()) for line in panels(unknown)[1].lines)
