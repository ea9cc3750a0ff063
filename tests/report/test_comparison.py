import dataclasses

import pytest
from _sample_runs import sample_run
from matplotlib.figure import Figure

from torchkiln.report import RunResult
from torchkiln.report._comparison import (
    NamedRun,
    differing_settings,
    incomparable,
    side_by_side,
)
from torchkiln.report._comparison_page import render_comparison
from torchkiln.report._comparison_plot import comparison_size, draw_comparison
from torchkiln.report._theme import DARK, LIGHT


def changed(result, *, target="U0", unit="eV", **bench):
    settings = {**result.settings, "bench": {**result.settings["bench"], **bench}}
    dataset = {**result.dataset, "target": target, "unit": unit}
    return dataclasses.replace(result, settings=settings, dataset=dataset)


@pytest.fixture(scope="module")
def run():
    return sample_run(num_epochs=6, steps_per_epoch=30, num_molecules=50)


@pytest.fixture
def two(run):
    return [NamedRun("first", run), NamedRun("fast <rate>", changed(run, learning_rate=0.01))]


def draw(runs, theme=LIGHT):
    figure = Figure(figsize=comparison_size(runs), layout="constrained")
    draw_comparison(figure, theme, runs)
    return figure


def test_only_settings_that_differ_are_listed(two):
    (row,) = differing_settings(two)
    assert (row.name, row.texts) == ("bench.learning_rate", ("0.001", "0.01"))


def test_names_and_folders_are_no_reason_for_anything(run):
    other = dataclasses.replace(run, settings={**run.settings, "run_name": "b", "resume": True})
    assert differing_settings([NamedRun("a", run), NamedRun("b", other)]) == []


def test_settings_that_one_run_has_not_are_shown_as_missing(run):
    other = dataclasses.replace(run, settings={**run.settings, "new": 3})
    (row,) = differing_settings([NamedRun("a", run), NamedRun("b", other)])
    assert row.texts == ("-", "3")


def test_figures_stand_side_by_side_as_in_the_closing_table(two):
    tables = side_by_side(two)
    assert list(tables) == ["Experiment", "Speed", "Accuracy"]
    by_name = {row.name: row for row in tables["Accuracy"]}
    assert "meV" in by_name["Test MAE"].texts[0]
    assert not by_name["Test MAE"].differs
    assert "" not in by_name  # notes are too long


def test_losses_of_other_targets_are_said_to_be_incomparable(run, two):
    assert incomparable(two) == ""
    other = NamedRun("gap", changed(run, target="gap", loss="mae"))
    assert incomparable([two[0], other]) == (
        "the targets differ (QM9 U0, QM9 gap) and the kinds of loss differ (, mae)"
    )
    assert "cannot be compared by their height" in render_comparison([two[0], other])


def test_losses_of_one_target_in_two_forms_are_incomparable_whatever_the_flags_say(run):
    def learnt(form):
        dataset = {**run.dataset, "form": form}
        return NamedRun(form, dataclasses.replace(run, dataset=dataset))

    per_atom, total = learnt("U0 (eV), per atom, standardised"), learnt("U0 (eV), standardised")
    assert incomparable([per_atom, total]) == "the form in which the target is learnt differs"
    assert incomparable([per_atom, per_atom]) == ""


def test_errors_of_different_targets_get_panels_of_their_own(run, two):
    assert [panel.get_title() for panel in draw(two).axes] == [
        "Training loss, mean of each epoch",
        "Validation error of U0",
    ]
    other = NamedRun("mu", changed(run, target="mu", unit="D"))
    figure = draw([*two, other])
    assert [panel.get_ylabel() for panel in figure.axes] == ["loss", "MAE (meV)", "MAE (D)"]


def test_short_runs_are_drawn_by_their_steps(run):
    short = dataclasses.replace(run, epochs=run.epochs[:1], steps=run.steps[:30])
    panel = draw([NamedRun("a", short), NamedRun("b", run)], DARK).axes[0]
    assert panel.get_title() == "Training loss, smoothed"
    assert len(panel.lines[0].get_xdata()) == 30


def test_axes_end_where_the_curves_do(two):
    for panel in draw(two).axes:
        low, high = panel.get_xlim()
        assert 0.5 < low < 1
        assert 6 < high < 6.5


def test_many_runs_can_be_told_apart(run):
    runs = [NamedRun(str(number), run) for number in range(24)]
    (legend,) = draw(runs).legends
    looks = {(line.get_color(), line.get_linestyle()) for line in legend.get_lines()}
    assert len(looks) == 24


def test_the_page_is_whole_in_itself_and_names_are_text(two):
    page = render_comparison(two)
    assert "2 runs compared" in page
    assert "fast &lt;rate&gt;" in page
    assert "<rate>" not in page
    assert "bench.<wbr>learning_<wbr>rate" in page
    assert "http" not in page.replace("http-equiv", "")
    assert page.count("data:image/png;base64,") == 4  # light and dark, wide and narrow


def test_runs_that_failed_before_a_step_are_compared_too(run):
    page = render_comparison([NamedRun("a", run), NamedRun("b", RunResult(status="failed"))])
    assert "FAILED" in page
    both = [NamedRun(name, RunResult(status="failed")) for name in "ab"]
    assert "All settings are the same." in render_comparison(both)
