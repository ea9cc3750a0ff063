"""The worst predictions of a run as molecules on its page."""

from __future__ import annotations

import dataclasses
import xml.etree.ElementTree as ElementTree

import pytest
from _sample_runs import AMMONIA, WATER, sample_run

from torchkiln.report import RunResult, load_result
from torchkiln.report._molecule_picture import molecule_svgs, worst_cards
from torchkiln.report._page import render_page
from torchkiln.report._results_file import save_result

SVG = "{http://www.w3.org/2000/svg}"


def small_run() -> RunResult:
    return sample_run(num_epochs=1, steps_per_epoch=3, num_molecules=20)


def test_a_drawing_is_whole_svg_with_a_ball_for_each_atom():
    water, ammonia = molecule_svgs([((8, 1, 1), WATER), ((7, 1, 1, 1), AMMONIA)])
    for text, atoms in ((water, 3), (ammonia, 4)):
        root = ElementTree.fromstring(text)
        balls = [c for c in root.iter(f"{SVG}circle") if c.get("fill", "").startswith("url(")]
        assert len(balls) == atoms
        gradients = {node.get("id") for node in root.iter(f"{SVG}radialGradient")}
        assert {ball.get("fill") for ball in balls} == {f"url(#{name})" for name in gradients}
        assert root.get("aria-label") == f"a molecule of {atoms} atoms"
    # Drawings on one page must not take each other's gradients, and have one scale.
    assert 'id="m0z1"' in water
    assert 'id="m1z1"' in ammonia
    assert water.split("viewBox")[1][:20] == ammonia.split("viewBox")[1][:20]


def test_nothing_is_drawn_of_nothing():
    assert molecule_svgs([]) == []
    assert worst_cards(RunResult(status="finished")) is None


def test_cards_tell_truth_prediction_and_error():
    worst = worst_cards(small_run())
    assert worst.split == "test"
    assert [card.name for card in worst.cards] == ["water <1>", "ammonia"]
    assert worst.cards[0].rows == [
        ("true", "-2,079.5 eV"),
        ("predicted", "-2,078.2 eV"),
        ("error", "+1,250 meV"),
    ]
    # As many decimals as show the difference.
    assert worst.cards[1].rows[1] == ("predicted", "-1,538.031 eV")


def test_the_split_is_the_one_that_the_run_is_judged_by():
    result = dataclasses.replace(small_run(), test=None)
    assert worst_cards(result).split == "validation"


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -2079.5])
def test_any_prediction_can_be_shown(value):
    first = dataclasses.replace(small_run().worst[0], predicted=value)
    worst = worst_cards(dataclasses.replace(small_run(), worst=[first]))
    assert len(worst.cards[0].rows) == 3


def test_the_page_shows_them_and_escapes_their_names():
    page = render_page(small_run(), {})
    assert "Worst predictions of the test split" in page
    assert "water &lt;1&gt;" in page
    assert page.count("<svg") == 2
    assert "Worst predictions" not in render_page(RunResult(status="finished"), {})


def test_results_without_them_still_load(tmp_path):
    result = dataclasses.replace(small_run(), worst=[])
    path, _ = save_result(result, tmp_path)
    assert load_result(path).worst == []


def test_molecules_come_back_as_they_were(tmp_path):
    result = small_run()
    save_result(result, tmp_path)
    assert load_result(tmp_path).worst == result.worst
