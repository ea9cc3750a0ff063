"""Which predictions are farthest off."""

from __future__ import annotations

import numpy as np
from _tiny_training import make_dataset

from torchkiln.apps.schnet._worst import worst_predictions
from torchkiln.report import ValidationResult


def judged(dataset, split="test", errors=None):
    chosen = np.sort(dataset.splits[split])
    true = dataset.values[chosen]
    errors = np.zeros(len(chosen)) if errors is None else errors
    return chosen, ValidationResult.compare(true + errors, true)


def test_the_worst_come_first_with_their_atoms():
    dataset = make_dataset(60)
    errors = np.zeros(len(dataset.splits["test"]))
    errors[[1, 4]] = [-3.0, 2.0]
    chosen, result = judged(dataset, errors=errors)
    first, second = worst_predictions(dataset, "test", result, count=2)
    molecules = dataset.molecules
    for found, place in ((first, 1), (second, 4)):
        index = chosen[place]
        atoms = slice(molecules.offsets[index], molecules.offsets[index + 1])
        assert found.name == f"random_{index}"
        assert found.z == tuple(molecules.z[atoms])
        np.testing.assert_allclose(found.pos, molecules.pos[atoms], atol=1e-4)
        assert found.true == dataset.values[index]
    assert first.predicted == first.true - 3.0


def test_a_prediction_that_is_no_number_is_the_worst():
    dataset = make_dataset(60)
    errors = np.zeros(len(dataset.splits["test"]))
    errors[[0, 2]] = [5.0, np.nan]
    chosen, result = judged(dataset, errors=errors)
    worst = worst_predictions(dataset, "test", result)
    assert worst[0].name == f"random_{chosen[2]}"
    assert worst[1].name == f"random_{chosen[0]}"


def test_fewer_predictions_than_molecules_name_nobody():
    dataset = make_dataset(60)
    result = ValidationResult.compare(np.zeros(2), np.ones(2))
    assert worst_predictions(dataset, "test", result) == []
