"""`results.json`: a run as a file that people, scripts and `load_result` can read.

Long series (predictions, losses of single steps) stand in `results.npz` beside it, so that the JSON
stays readable. JSON has no NaN and no infinity, and a failed run has both: they are written as the
strings "NaN", "Infinity" and "-Infinity".
"""

from __future__ import annotations

import dataclasses
import enum
import hashlib
import io
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from torchkiln.core import StoreError, parse_json, read_npz, write_atomic
from torchkiln.report._epoch_names import from_named, to_named
from torchkiln.report._record import EpochRecord, PredictedMolecule, RunResult, ValidationResult
from torchkiln.report._series_aside import kept_aside, read_aside
from torchkiln.report._world_names import read_world, world_figures

VERSION = 2
_WITHOUT_CHECKSUM = 1  # the version whose JSON has none; its series have
_COUNTED_BEFORE = "molecules"  # in files that do not say it
RESULTS_NAME = "results.json"
SERIES_NAME = "results.npz"
_SPLITS = ("validation", "test")


def to_record(result: RunResult) -> dict[str, Any]:
    """Return the run as strict JSON types, without its long series; what `--json` prints."""
    record = {field.name: getattr(result, field.name) for field in dataclasses.fields(result)}
    del record["steps"]
    counted = result.counted
    record["epochs"] = [to_named(epoch, counted) for epoch in result.epochs]
    for name in _SPLITS:
        record[name] = _split_figures(record[name], counted)
    record["worst"] = [_molecule_figures(molecule) for molecule in result.worst]
    if result.world is None:
        del record["world"]
    else:
        record["world"] = world_figures(result.world, counted)
    return {
        "version": VERSION,
        f"{counted}_per_s": to_plain(result.samples_per_s),
        f"best_{counted}_per_s": to_plain(result.best_samples_per_s),
        "num_steps": len(result.steps),
        **to_plain(record),
    }


def save_result(result: RunResult, directory: Path) -> tuple[Path, Path]:
    """Write `results.json` and `results.npz`; each replaces its forerunner in one step."""
    series = _series(result)
    buffer = io.BytesIO()
    np.savez_compressed(buffer, allow_pickle=False, **series)
    content = buffer.getvalue()
    record = to_record(result)
    record["series"] = {"file": SERIES_NAME, "sha256": hashlib.sha256(content).hexdigest()}
    record["sha256"] = checksum_of(record)
    # The JSON comes last: it is never newer than the series that it names. Until it comes, the one
    # before it needs its own.
    with kept_aside(directory / SERIES_NAME, _checksum_in(directory / RESULTS_NAME)):
        _write(directory, content, record)
    return directory / RESULTS_NAME, directory / SERIES_NAME


def _checksum_in(path: Path) -> str:
    """Return the checksum of the series that a results file belongs to; empty without one."""
    try:
        return str(json.loads(path.read_text(encoding="utf-8"))["series"]["sha256"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return ""


def _write(directory: Path, content: bytes, record: dict[str, Any]) -> None:
    write_atomic(directory / SERIES_NAME, content)
    text = json.dumps(record, indent=2, allow_nan=False, ensure_ascii=False)
    write_atomic(directory / RESULTS_NAME, text + "\n")


def load_result(path: Path) -> RunResult:
    """Read what `save_result` wrote.

    Args:
        path: `results.json` or the directory that holds it.

    Raises:
        StoreError: the file is missing, damaged, of a newer version, or its series are not its own.
    """
    path = path / RESULTS_NAME if path.is_dir() else path
    try:
        content = path.read_bytes()
    except OSError as error:
        raise StoreError(f"cannot read {path}: {error}") from error
    try:
        record = parse_json(content, path.name)
        version = record["version"]
    except (StoreError, KeyError, TypeError) as error:
        raise StoreError(f"{path} is not a results file of a run: {error}") from error
    if version not in (_WITHOUT_CHECKSUM, VERSION):
        raise StoreError(
            f"{path} has version {version!r}, this Torchkiln reads versions up to {VERSION}; "
            "use the one that wrote it"
        )
    # One that has a checksum must match it, even if damage made it look like an earlier version.
    is_sealed = version != _WITHOUT_CHECKSUM or "sha256" in record
    if is_sealed and record.pop("sha256", None) != checksum_of(record):
        raise StoreError(
            f"{path} is damaged: it does not have its checksum; run the benchmark again"
        )
    try:
        name = record["series"]["file"]
        if name != SERIES_NAME:
            raise StoreError(f"{path} names {name!r} for its series; {SERIES_NAME} lies beside it")
        series = _read_series(path.parent / name, record["series"]["sha256"])
        for key in ("settings", "dataset", "model", "machine"):
            if not isinstance(record[key], dict):
                raise TypeError(f"{key} is {type(record[key]).__name__}")
        counted = str(record.get("counted", _COUNTED_BEFORE))
        steps = zip(series["step"].tolist(), series["step_loss"].tolist(), strict=True)
        return RunResult(
            status=record["status"],
            settings=record["settings"],
            dataset=record["dataset"],
            model=record["model"],
            machine=record["machine"],
            compile_seconds=_number(record["compile_seconds"]),
            packing={axis: float(share) for axis, share in record["packing"].items()},
            epochs=[_read_epoch(epoch, counted) for epoch in record["epochs"]],
            steps=list(steps),
            validation=_read_split("validation", record, series),
            test=_read_split("test", record, series),
            note=record["note"],
            counted=counted,
            best_epoch=_number(record.get("best_epoch")),
            advice=str(record.get("advice", "")),
            worst=_read_worst(record.get("worst", []), series),
            world=read_world(record.get("world"), counted),
        )
    except StoreError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError) as error:
        raise StoreError(f"{path} is damaged: {error!r}; run the benchmark again") from error


def _read_epoch(values: Mapping[str, Any], counted: str) -> EpochRecord:
    plain = {name: _number(value) for name, value in values.items() if name != "figures"}
    figures = {name: _number(value) for name, value in values.get("figures", {}).items()}
    return from_named({**plain, "figures": figures}, counted)


def _molecule_figures(molecule: PredictedMolecule) -> dict[str, Any]:
    """Return what the JSON says of a molecule; its atoms are in the series."""
    return {
        "name": molecule.name,
        "atoms": len(molecule.z),
        "true": molecule.true,
        "predicted": molecule.predicted,
    }


def _read_worst(
    records: list[Mapping[str, Any]], series: dict[str, npt.NDArray[Any]]
) -> list[PredictedMolecule]:
    found, start = [], 0
    for values in records:
        atoms = slice(start, start + int(values["atoms"]))
        start = atoms.stop
        rows = series["worst_pos"][atoms].tolist()
        found.append(
            PredictedMolecule(
                name=str(values["name"]),
                z=tuple(series["worst_z"][atoms].tolist()),
                pos=tuple((x, y, depth) for x, y, depth in rows),
                true=_number(values["true"]),
                predicted=_number(values["predicted"]),
            )
        )
    return found


def checksum_of(record: Mapping[str, Any]) -> str:
    """Return the checksum that a file of results carries, over all else that it says."""
    return hashlib.sha256(json.dumps(record, sort_keys=True).encode()).hexdigest()


def to_plain(value: Any) -> Any:
    """Return `value` as strict JSON types: no NaN, no NumPy, no paths, no enums."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, enum.Enum):
        return to_plain(value.value)
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = dataclasses.fields(value)
        return {field.name: to_plain(getattr(value, field.name)) for field in fields}
    if isinstance(value, Mapping):
        return {str(key): to_plain(entry) for key, entry in value.items()}
    if isinstance(value, np.ndarray):
        return to_plain(value.tolist())
    if isinstance(value, list | tuple | set | frozenset):
        return [to_plain(entry) for entry in value]
    return str(value)


def _split_figures(split: ValidationResult | None, counted: str) -> dict[str, Any] | None:
    if split is None:
        return None
    return {
        counted: len(split.true),
        "mae": split.mae,
        "rmse": split.rmse,
        "baseline_mae": split.baseline_mae,
        "baseline_over_mae": split.factor,
    }


def _series(result: RunResult) -> dict[str, npt.NDArray[Any]]:
    series: dict[str, npt.NDArray[Any]] = {
        "step": np.array([step for step, _ in result.steps], np.int64),
        "step_loss": np.array([loss for _, loss in result.steps], np.float64),
    }
    for name in _SPLITS:
        split: ValidationResult | None = getattr(result, name)
        if split is not None:
            series[f"{name}_predicted"] = np.asarray(split.predicted, np.float64)
            series[f"{name}_true"] = np.asarray(split.true, np.float64)
            if split.reference is not None:
                series[f"{name}_reference"] = np.asarray(split.reference, np.float64)
    if result.worst:
        series["worst_z"] = np.concatenate([np.array(m.z, np.int64) for m in result.worst])
        series["worst_pos"] = np.concatenate([np.array(m.pos, np.float64) for m in result.worst])
    return series


def _read_series(path: Path, sha256: str) -> dict[str, npt.NDArray[Any]]:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise StoreError(f"cannot read {path}, which belongs to the results: {error}") from error
    if hashlib.sha256(content).hexdigest() != sha256:
        content = read_aside(path, sha256) or b""
    if not content:
        raise StoreError(f"{path} is damaged or belongs to another run; run the benchmark again")
    return read_npz(io.BytesIO(content), path)


def _read_split(
    name: str, record: dict[str, Any], series: dict[str, npt.NDArray[Any]]
) -> ValidationResult | None:
    figures = record[name]
    if figures is None:
        return None
    return ValidationResult(
        predicted=series[f"{name}_predicted"],
        true=series[f"{name}_true"],
        mae=_number(figures["mae"]),
        rmse=_number(figures["rmse"]),
        baseline_mae=_number(figures["baseline_mae"]),
        reference=series.get(f"{name}_reference"),  # earlier files have none
    )


def _number(value: Any) -> Any:
    """Turn "NaN" and "Infinity" back into numbers; ints stay ints."""
    if not isinstance(value, str | int | float | None):
        raise TypeError(f"{type(value).__name__} instead of a number")
    return float(value) if isinstance(value, str) else value
