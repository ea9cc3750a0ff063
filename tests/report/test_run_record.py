from __future__ import annotations

import math

import numpy as np
import pytest
from _sample_runs import sample_run

from torchkiln.report import EpochRecord, RunResult, ValidationResult


def epoch(number: int, rate: float) -> EpochRecord:
    return EpochRecord(number, 1.0, 1000 / rate, 1000, rate, 1e-3)


def test_errors_are_those_of_their_definitions():
    split = ValidationResult.compare(np.array([1.0, 2.0, 7.0]), np.array([1.0, 3.0, 4.0]))
    assert split.mae == pytest.approx(4 / 3)
    assert split.rmse == pytest.approx(math.sqrt(10 / 3))
    assert split.factor is None


def test_factor_says_how_many_times_the_baseline_is_worse():
    split = ValidationResult.compare(np.array([1.0, 3.0]), np.array([0.0, 2.0]), baseline_mae=3.5)
    assert split.factor == pytest.approx(3.5)


@pytest.mark.parametrize("true", [[0.0, 0.0], [-5.0, 5.0]])
def test_a_baseline_that_is_right_leaves_nothing_to_learn(true):
    true = np.array(true)
    split = ValidationResult.compare(true + 0.1, true, reference=true * (1 + 1e-15))
    assert split.is_baseline_exact
    assert RunResult(status="finished", test=split).is_beaten
    same = ValidationResult.compare(true, true, reference=true)
    assert not RunResult(status="finished", test=same).is_beaten


def test_a_small_error_is_not_taken_for_none():
    true = np.array([-5.0, 5.0])
    assert not ValidationResult.compare(true, true, baseline_mae=1e-9).is_baseline_exact


def test_an_empty_split_has_no_error():
    split = ValidationResult.compare(np.empty(0), np.empty(0), baseline_mae=1.0)
    assert math.isnan(split.mae)
    assert split.factor is None


def test_the_first_epoch_is_not_in_the_median():
    epochs = [epoch(0, 10.0), epoch(1, 100.0), epoch(2, 120.0), epoch(3, 110.0)]
    result = RunResult(status="finished", epochs=epochs)
    assert result.samples_per_s == 110.0
    assert result.best_samples_per_s == 120.0
    assert result.epoch_seconds == pytest.approx(1000 / 110)


def test_a_single_epoch_is_all_there_is():
    assert RunResult(status="finished", epochs=[epoch(0, 10.0)]).samples_per_s == 10.0


def test_a_run_without_epochs_has_no_rate():
    result = RunResult(status="failed")
    assert result.samples_per_s is None
    assert result.best_samples_per_s is None
    assert result.epoch_seconds is None


def test_the_sample_run_is_a_good_one():
    result = sample_run()
    assert result.test is not None
    assert result.test.factor is not None
    assert result.test.factor > 3


def test_the_error_of_the_reference_is_the_baseline_unless_it_is_given():
    true, reference = np.array([0.0, 2.0]), np.array([1.0, 4.0])
    split = ValidationResult.compare(true, true, reference=reference)
    assert split.baseline_mae == pytest.approx(1.5)
    given = ValidationResult.compare(true, true, reference=reference, baseline_mae=9.0)
    assert given.baseline_mae == 9.0
    assert ValidationResult.compare(true, true).reference is None
