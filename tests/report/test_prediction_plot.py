from __future__ import annotations

import numpy as np
import pytest
from _drawn_pictures import drawn, legend_texts

from torchkiln.report import RunResult, ValidationResult
from torchkiln.report._plots import pictures_of
from torchkiln.report._prediction_plot import is_relative

RNG = np.random.default_rng(3)
TRUE = RNG.normal(-11_000, 1_000, 500)  # total energies in eV
FORMULA = TRUE + RNG.normal(0, 0.5, 500)  # what the formula alone says: half an eV off


def run(error_ev: float, *, true=TRUE, reference=FORMULA, target="U0", unit="eV") -> RunResult:
    predicted = true + RNG.normal(0, error_ev, len(true))
    split = ValidationResult.compare(predicted, true, reference=reference)
    dataset = {"target": target, "unit": unit}
    return RunResult(status="finished", dataset=dataset, test=split, counted="molecules")


def panels(result: RunResult, *, narrow: bool = False) -> list:
    return drawn(pictures_of(result)[0], narrow=narrow).axes


def points(panel) -> np.ndarray:
    return np.asarray(panel.collections[0].get_offsets())


def test_total_energies_are_drawn_relative_to_what_the_formula_says():
    agreement = panels(run(0.05))[0]
    low, high = agreement.get_xlim()
    assert -3 < low < high < 3  # eV; the energies themselves span thousands
    assert "relative to the linear baseline" in agreement.get_xlabel()
    assert "relative to the linear baseline" in agreement.get_ylabel()
    np.testing.assert_allclose(points(agreement)[:, 0], TRUE - FORMULA)


def test_a_target_that_the_formula_does_not_explain_is_drawn_as_it_is():
    gap = RNG.normal(7, 1.2, 500)
    result = run(0.1, true=gap, reference=7 + RNG.normal(0, 0.5, 500), target="gap")
    agreement = panels(result)[0]
    assert agreement.get_xlabel() == "true gap (eV)"
    np.testing.assert_allclose(points(agreement)[:, 0], gap)


def test_results_without_references_are_drawn_as_they_are():
    agreement, distribution, _ = panels(run(0.05, reference=None))
    assert agreement.get_xlabel() == "true U0 (eV)"
    assert len(distribution.patches) > 5
    assert not any("baseline" in text for text in legend_texts(distribution))


def test_a_model_that_loses_to_the_formula_looks_worse_than_it():
    agreement, distribution, residuals = panels(run(2.0))
    across, up = points(agreement).T
    assert up.std() > 2 * across.std()  # off the diagonal, upwards and downwards
    assert distribution.get_xlim()[1] > 2 * 1000 * np.abs(FORMULA - TRUE).mean()
    # Most points lie outside the dashed lines of the baseline, which are on the picture.
    dashed = max(line.get_ydata()[0] for line in residuals.lines)
    assert 0 < dashed < residuals.get_ylim()[1]
    assert (np.abs(points(residuals)[:, 1]) > dashed).mean() > 0.7


def test_the_errors_of_model_and_formula_stand_on_one_axis():
    model, formula = legend_texts(panels(run(0.05))[1])
    assert model.startswith("model: half are within 3")
    assert formula.startswith("linear baseline: half are within 3")  # 34 and 340 meV
    assert "meV" in formula


def test_every_error_is_in_the_panel_of_residuals_and_the_axis_stops_there():
    result = run(0.05)
    residuals = panels(result)[2]
    errors = 1000 * (result.test.predicted - result.test.true)
    np.testing.assert_allclose(points(residuals)[:, 1], errors)
    low, high = residuals.get_xlim()
    room = 0.05 * (TRUE.max() - TRUE.min())
    assert TRUE.min() - room < low < TRUE.min() < TRUE.max() < high < TRUE.max() + room
    room = 0.05 * (errors.max() - errors.min())
    bottom, top = residuals.get_ylim()
    assert errors.min() - room < bottom < errors.min() < errors.max() < top < errors.max() + room


def test_errors_on_one_side_leave_no_empty_half():
    predicted = TRUE + RNG.uniform(2.0, 5.0, 500)
    split = ValidationResult.compare(predicted, TRUE, reference=FORMULA)
    result = RunResult(status="finished", dataset={"target": "U0", "unit": "eV"}, test=split)
    _, distribution, residuals = panels(result)
    low, high = distribution.get_xlim()
    assert high > 4_900
    assert -1_500 < low < -300  # room for the errors of the baseline, and no more
    assert residuals.get_ylim()[0] > -1_000


def test_panels_stand_below_each_other_where_there_is_little_width():
    for narrow in (False, True):
        left = {round(panel.get_position().x0, 1) for panel in panels(run(0.1), narrow=narrow)}
        assert len(left) == (1 if narrow else 2)


def test_many_molecules_become_cells_that_stand_out_from_the_background():
    true = RNG.normal(-11_000, 1_000, 4_000)
    result = run(0.1, true=true, reference=true + RNG.normal(0, 0.5, 4_000))
    agreement, _, residuals = panels(result)
    cells = agreement.collections[0]
    assert cells.get_array().size > 50
    faintest = np.asarray(cells.get_cmap()(0.0)[:3])
    assert faintest.max() - faintest.min() > 0.15  # a colour, not white
    assert "more molecules" in " ".join(text.get_text() for text in residuals.texts)


def test_one_molecule_is_a_singular():
    result = run(0.1, true=TRUE[:1], reference=FORMULA[:1])
    assert panels(result)[0].get_title(loc="left") == "1 molecule of the test split"
    assert not is_relative(result.test)


def test_captions_say_what_is_subtracted_and_what_the_baseline_is():
    caption = pictures_of(run(0.05))[0].caption
    assert "subtracted from both axes" in caption
    assert "least-squares fit to the number of atoms of each element" in caption
    assert pictures_of(run(0.05, reference=None))[0].caption == ""


@pytest.mark.parametrize("size", [1e-12, 1e12])
def test_tiny_and_huge_values_are_drawn(size):
    true = size * np.linspace(1, 2, 20)
    panel = panels(run(0.01 * size, true=true, reference=None, unit=""))[0]
    labels = [text.get_text() for text in panel.get_xticklabels()]
    assert len(set(labels)) == len(labels)
