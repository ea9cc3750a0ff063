from __future__ import annotations

import dataclasses
import io
import json

import numpy as np
import pytest
from _sample_runs import sample_run

from torchkiln.report import (
    EpochRecord,
    RunResult,
    ValidationResult,
    print_record,
    print_summary,
)
from torchkiln.report._units import format_error, format_seconds, significant


def table(result: RunResult) -> str:
    stream = io.StringIO()
    print_summary(result, stream=stream)
    return stream.getvalue()


def rows(result: RunResult) -> dict[str, str]:
    cells = [line.strip("│\n").split("│") for line in table(result).splitlines() if "│" in line]
    return {name.strip(): text.strip() for name, text in cells}


def test_the_table_shows_what_a_lab_report_does():
    shown = rows(sample_run())
    assert shown["Dataset"] == "QM9, target U0 (eV)"
    assert shown["Molecules"] == "104,665 train, 13,083 validation, 13,083 test"
    assert shown["Model"] == "SchNet, 455,809 parameters"
    assert shown["Compilation"] == "38.4 s"
    assert shown["Slots in use"] == "nodes 98.3%, edges 97.2%, graphs 94.0%"
    assert shown["Throughput"].startswith("2,1")
    baseline = shown["Linear baseline MAE"]
    assert baseline.startswith("437 meV (10.1 kcal/mol), model 6.")
    assert baseline.endswith("times better")
    assert shown["Status"] == "finished"
    for name in ("Final loss", "Validation MAE", "Test MAE", "Epochs"):
        assert shown[name], name


def beaten_run(**changes):
    """A run whose test error is larger than that of least squares."""
    true = np.linspace(-50.0, -10.0, 40)
    test = ValidationResult.compare(true + 18.6, true, baseline_mae=2.78)
    advice = "Try to train longer (--num_epochs 30)."
    return dataclasses.replace(sample_run(), test=test, advice=advice, **changes)


def test_a_run_that_loses_to_the_baseline_is_not_called_finished_alone():
    shown = rows(beaten_run())
    assert shown["Status"] == "finished, but no better than the linear baseline"
    assert shown["Linear baseline MAE"].endswith("model 6.69 times worse")
    assert shown[""].startswith("Try to train longer (--num_epochs 30).")


def test_only_finished_runs_are_beaten():
    assert beaten_run().is_beaten
    assert not beaten_run(status="interrupted").is_beaten
    assert not sample_run().is_beaten
    assert not dataclasses.replace(sample_run(), test=None, validation=None).is_beaten


def test_an_error_that_is_no_number_does_not_beat_the_baseline():
    nothing = ValidationResult.compare(np.array([np.nan]), np.array([1.0]), baseline_mae=1.0)
    assert dataclasses.replace(sample_run(), test=nothing).is_beaten


def test_the_epoch_of_the_best_weights_is_told():
    shown = rows(dataclasses.replace(sample_run(num_epochs=12), best_epoch=7))
    assert shown["Best weights"] == "those after epoch 8 of 12, by validation error"


def test_it_is_plain_text_of_at_most_80_columns_where_there_is_no_terminal(monkeypatch):
    monkeypatch.delenv("COLUMNS")
    result = dataclasses.replace(sample_run(), note="a reason " * 30)
    assert "\x1b" not in table(result)
    assert max(map(len, table(result).splitlines())) <= 80


def test_other_units_stay_as_they_are():
    split = ValidationResult.compare(np.array([1.0, 2.0]), np.array([1.5, 2.5]))
    result = RunResult(
        status="finished", dataset={"name": "QM9", "target": "mu", "unit": "D"}, validation=split
    )
    shown = rows(result)
    assert shown["Validation MAE"] == "0.500 D"
    assert "Linear baseline MAE" not in shown


def test_a_run_that_failed_at_once_is_told():
    result = RunResult(status="failed", note="loss is NaN in epoch 0, step 3 [of 10]")
    shown = rows(result)
    assert shown["Status"] == "FAILED"
    assert "loss is NaN in epoch 0, step 3 [of 10]" in table(result)


def test_one_epoch_is_not_called_epochs():
    epoch = EpochRecord(0, 0.5, 75.0, 100, 1.33, 1e-3)
    assert rows(RunResult(status="finished", epochs=[epoch]))["Epochs"] == "1 epoch of 1 min 15 s"


def test_json_is_one_line_with_the_figures():
    stream = io.StringIO()
    print_record(sample_run(num_molecules=10), stream=stream)
    assert stream.getvalue().count("\n") == 1
    record = json.loads(stream.getvalue())
    assert record["status"] == "finished"
    assert record["dataset"]["target"] == "U0"


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (0.0433641, "eV", "43.4 meV (1.00 kcal/mol)"),
        (1.0, "kcal/mol", "1.00 kcal/mol (43.4 meV)"),
        (1.0, "Ha", "27,211 meV (628 kcal/mol)"),
        (0.25, "D", "0.250 D"),
        (0.25, "", "0.250"),
        (float("nan"), "eV", "nan meV (nan kcal/mol)"),
    ],
)
def test_errors_are_written_in_the_units_people_compare(value, unit, text):
    assert format_error(value, unit) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (1234.5, "1,234"), (0.0001234, "0.000123"), (1.2e-7, "1.20e-07"), (99.96, "100")],
)
def test_numbers_keep_three_significant_digits(value, text):
    assert significant(value) == text


@pytest.mark.parametrize(
    ("value", "text"), [(0.512, "0.512 s"), (61, "1 min 01 s"), (7322, "2 h 02 min")]
)
def test_durations_are_written_as_said(value, text):
    assert format_seconds(value) == text
