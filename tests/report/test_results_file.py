from __future__ import annotations

import dataclasses
import enum
import hashlib
import json
import math
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
from _sample_runs import sample_run

from torchkiln.core import StoreError
from torchkiln.report import EpochRecord, RunResult, ValidationResult, load_result
from torchkiln.report._results_file import checksum_of, save_result, to_plain, to_record


def strict(path: Path) -> dict:
    def refuse(text: str) -> None:
        raise AssertionError(f"{text} is not JSON")

    return json.loads(path.read_text(), parse_constant=refuse)


def test_a_run_comes_back_as_it_was(tmp_path):
    result = sample_run(num_epochs=2, num_molecules=50)
    save_result(result, tmp_path / "new" / "folder")
    again = load_result(tmp_path / "new" / "folder")
    for field in dataclasses.fields(RunResult):
        if field.name not in ("validation", "test"):
            assert getattr(again, field.name) == getattr(result, field.name), field.name
    for name in ("validation", "test"):
        old, new = getattr(result, name), getattr(again, name)
        np.testing.assert_array_equal(new.predicted, old.predicted)
        np.testing.assert_array_equal(new.true, old.true)
        np.testing.assert_array_equal(new.reference, old.reference)
        assert (new.mae, new.rmse, new.baseline_mae) == (old.mae, old.rmse, old.baseline_mae)


def test_a_failed_run_with_nan_is_strict_json_and_comes_back(tmp_path):
    nan = EpochRecord(0, math.nan, 1.0, 10, 10.0, 1e-3, math.inf)
    path, _ = save_result(
        RunResult(status="failed", epochs=[nan], steps=[(0, 1.0), (1, math.nan)]), tmp_path
    )
    assert strict(path)["epochs"][0]["loss"] == "NaN"
    again = load_result(path)
    assert math.isnan(again.epochs[0].loss)
    assert again.epochs[0].validation_mae == math.inf
    assert again.epochs[0].validation_loss is None
    assert math.isnan(again.steps[1][1])
    assert again.validation is None


def test_the_json_holds_figures_but_no_long_series(tmp_path):
    path, _ = save_result(sample_run(), tmp_path)
    record = strict(path)
    assert record["test"]["molecules"] == 10_000
    assert record["test"]["baseline_over_mae"] > 3
    assert record["num_steps"] == 12 * 85
    assert len(path.read_text()) < 10_000


def test_settings_of_any_kind_become_plain():
    class Mode(enum.Enum):
        PACKED = "packed"

    assert to_plain(
        {
            "mode": Mode.PACKED,
            "path": Path("a/b"),
            "count": np.int64(3),
            "share": np.float32(0.5),
            "rate": -math.inf,
            "list": (1, np.array([1.0, math.nan])),
            5: None,
        }
    ) == {
        "mode": "packed",
        "path": "a/b",
        "count": 3,
        "share": 0.5,
        "rate": "-Infinity",
        "list": [1, [1.0, "NaN"]],
        "5": None,
    }


def test_series_of_another_run_are_refused(tmp_path):
    path, series = save_result(sample_run(num_epochs=1, num_molecules=10), tmp_path)
    save_result(sample_run(num_epochs=1, num_molecules=11), tmp_path / "other")
    series.write_bytes((tmp_path / "other" / series.name).read_bytes())
    with pytest.raises(StoreError, match=r"results\.npz is damaged or belongs to another run"):
        load_result(path)


def test_missing_series_are_named(tmp_path):
    path, series = save_result(RunResult(status="finished"), tmp_path)
    series.unlink()
    with pytest.raises(StoreError, match=r"cannot read .*results\.npz"):
        load_result(path)


def sealed(**record):
    return json.dumps({**record, "sha256": checksum_of(record)})


def test_a_digit_that_changed_is_noticed(tmp_path):
    path, _ = save_result(sample_run(num_epochs=2), tmp_path)
    text = path.read_text()
    assert "38.4" in text
    path.write_text(text.replace("38.4", "38.5"))
    with pytest.raises(StoreError, match=r"results\.json is damaged"):
        load_result(path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "not a results file"),
        ("[1]", "not a results file"),
        ('{"version": 99}', "version 99"),
        ('{"version": 1}', "is damaged: KeyError"),
        ('{"version": 1, "sha256": ""}', "does not have its checksum"),
        ('{"version": 2}', "does not have its checksum"),
        (sealed(version=2), "is damaged: KeyError"),
        ('{"a":' * 2000 + "1" + "}" * 2000, "nested deeper"),
        ("[" * 100_000, "nested deeper"),
        ("\0", "not a results file"),
        (sealed(version=2, series={"file": "/dev/zero", "sha256": ""}), "beside it"),
        (sealed(version=2, series={"file": "../a.npz", "sha256": ""}), "beside it"),
        (sealed(version=2, series={"file": 3, "sha256": ""}), "beside it"),
    ],
)
def test_other_files_are_refused(tmp_path, text, message):
    path = tmp_path / "results.json"
    path.write_text(text)
    with pytest.raises(StoreError, match=message):
        load_result(path)


def test_results_of_version_1_are_read(tmp_path):
    path, series = save_result(sample_run(num_epochs=2), tmp_path)
    record = json.loads(path.read_text())
    del record["sha256"]
    path.write_text(json.dumps({**record, "version": 1}))
    assert load_result(path).epochs == sample_run(num_epochs=2).epochs
    series.write_bytes(series.read_bytes()[:-1])
    with pytest.raises(StoreError, match="damaged or belongs to another run"):
        load_result(path)


def test_results_are_utf8_whatever_the_locale(tmp_path):
    save_result(dataclasses.replace(sample_run(), note="Å"), tmp_path)
    program = (
        "import sys; from pathlib import Path; from torchkiln.report import load_result; "
        "assert load_result(Path(sys.argv[1])).note == chr(0xC5)"
    )
    done = subprocess.run(
        [sys.executable, "-X", "utf8=0", "-c", program, str(tmp_path)],
        env={**os.environ, "LC_ALL": "C", "PYTHONCOERCECLOCALE": "0"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(StoreError, match=r"cannot read .*results\.json"):
        load_result(tmp_path)


def test_the_record_fits_on_one_line():
    assert "\n" not in json.dumps(to_record(sample_run()), allow_nan=False)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("packing", 3),
        ("packing", {"nodes": "much"}),
        ("epochs", [3]),
        ("epochs", {"a": 1}),
        ("validation", 3),
        ("test", {"mae": "spam"}),
        ("settings", 3),
        ("compile_seconds", []),
    ],
)
def test_results_of_other_forms_are_named(tmp_path, key, value):
    path, _ = save_result(sample_run(num_epochs=1, num_molecules=10), tmp_path)
    record = json.loads(path.read_text())
    del record["sha256"]
    path.write_text(sealed(**{**record, key: value}))
    with pytest.raises(StoreError, match=r"results\.json is damaged"):
        load_result(path)


def test_series_that_claim_a_terabyte_are_named(tmp_path):
    path, series = save_result(sample_run(num_epochs=1, num_molecules=10), tmp_path)
    header = b"{'descr': '<f8', 'fortran_order': False, 'shape': (1000000000000,), }"
    header += b" " * (117 - len(header)) + b"\n"
    with zipfile.ZipFile(series, "w") as archive:
        archive.writestr("step.npy", b"\x93NUMPY\x01\x00" + b"\x76\x00" + header)
    record = json.loads(path.read_text())
    record["series"]["sha256"] = hashlib.sha256(series.read_bytes()).hexdigest()
    del record["sha256"]
    path.write_text(sealed(**record))
    with pytest.raises(StoreError, match=r"results\.npz.*claims an array"):
        load_result(path)


def test_results_from_before_there_were_references_still_load(tmp_path):
    split = ValidationResult.compare(np.ones(3), np.zeros(3), baseline_mae=2.0)
    save_result(RunResult(status="finished", test=split), tmp_path)
    with np.load(tmp_path / "results.npz") as series:
        assert "test_reference" not in series  # as in files of older versions
    again = load_result(tmp_path).test
    assert again is not None
    assert again.reference is None
    assert again.baseline_mae == 2.0
