"""`torchkiln runs`: what runs there are, one of them again, and several side by side. No torch."""

from __future__ import annotations

import datetime
import difflib
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torchkiln.apps.cosmic._stored import is_cosmic, read_cosmic
from torchkiln.commands._folders import folders_in
from torchkiln.core import OptionsError, StoreError, write_atomic
from torchkiln.core._claims import is_claimed
from torchkiln.report import RunResult, load_result, print_record, print_summary
from torchkiln.report._comparison import (
    NamedRun,
    SideRow,
    differing_settings,
    incomparable,
    side_by_side,
)
from torchkiln.report._results_file import RESULTS_NAME, to_plain
from torchkiln.report._tables import print_table, shown_time
from torchkiln.report._units import format_short_error, significant
from torchkiln.report._write import PAGE_NAME

_RUNNING, _DAMAGED = "running", "damaged"
_COLUMNS = (
    *("name", "date", "dataset", "target", "model", "epochs", "status", "test MAE"),
    "samples/s",
)
_LEAST_NEEDED = ("model", "dataset", "samples/s", "target", "epochs", "date")
_NUMBERS = ("epochs", "test MAE", "samples/s")


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredRun:
    """A folder of a run.

    Args:
        path: The folder, named after the run.
        time_s: When its results were written, or when it was started.
        status: How the run ended; or "running", or "damaged".
        result: What it left; None while it runs, and if it is damaged.
        problem: What is wrong with it.
    """

    path: Path
    time_s: float
    status: str
    result: RunResult | None = None
    problem: str = ""

    def to_record(self) -> dict[str, Any]:
        """Return what the list says about it, in JSON types."""
        record: dict[str, Any] = {
            "name": self.path.name,
            "path": str(self.path),
            "date": datetime.datetime.fromtimestamp(self.time_s).astimezone().isoformat(),
            "status": self.status,
        }
        if self.problem:
            record["problem"] = self.problem
        if (result := self.result) is not None:
            record |= {
                "dataset": result.dataset.get("name"),
                "target": result.dataset.get("target"),
                "unit": result.unit or None,
                "model": result.model.get("name"),
                "parameters": result.model.get("parameters"),
                "epochs": len(result.epochs),
                "is_beaten": result.is_beaten,
                "test_mae": None if result.test is None else result.test.mae,
                f"{result.counted}_per_s": result.samples_per_s,
            }
        plain: dict[str, Any] = to_plain(record)
        return plain


def list_runs(output_dir: Path, *, as_json: bool) -> None:
    """Print one line a run, newest first."""
    runs = find_runs(output_dir)
    if as_json:
        sys.stdout.write(json.dumps([run.to_record() for run in runs]) + "\n")
        return
    if not runs:
        sys.stdout.write(
            f"there are no runs in {output_dir}; `torchkiln bench` makes one, and --output_dir "
            "names another folder\n"
        )
        return
    print_table(
        f"{len(runs)} run{'s' * (len(runs) > 1)} in {output_dir}",
        _COLUMNS,
        [_cells(run) for run in runs],
        right=_NUMBERS,
        may_be_left_out=_LEAST_NEEDED,
    )
    for run in runs:
        if run.problem:
            sys.stdout.write(f"{run.path.name}: {run.problem}\n")


def show_run(name: str | None, output_dir: Path, *, as_json: bool) -> None:
    """Print the closing table of a run again."""
    if name is None:
        raise OptionsError(
            "which run? as in `torchkiln runs show NAME`; `torchkiln runs list` names all"
        )
    path = find_run(name, output_dir)
    result = read_run(path)
    if as_json:
        print_record(result)
        return
    print_summary(result)
    page = path / PAGE_NAME
    sys.stdout.write(f"report: {page}\n" if page.is_file() else f"folder: {path}\n")


def compare_runs(names: Sequence[str], output_dir: Path, output: Path | None) -> None:
    """Print settings that differ and figures side by side; write a page with curves."""
    if len(names) < 2:
        raise OptionsError(
            f"comparing needs at least two runs, got {len(names)}, as in `torchkiln runs compare A "
            "B`; `torchkiln runs list` shows which there are"
        )
    paths = [find_run(name, output_dir) for name in names]
    if len({path.resolve() for path in paths}) < len(paths):
        raise OptionsError(f"{', '.join(names)} name a run twice; name each once")
    runs = [
        NamedRun(name, read_run(path)) for name, path in zip(_titles(paths), paths, strict=True)
    ]
    page = output or output_dir / "compare.html"
    # First: who reads the tables through a pipe may close it before their end.
    _write_page(runs, page)
    columns = ["", *(run.name for run in runs)]
    settings = differing_settings(runs)
    if settings:
        print_table("Settings that differ", columns, _lines(settings))
    else:
        sys.stdout.write("All settings are the same.\n")
    for title, rows in side_by_side(runs).items():
        print_table(title, columns, _lines(rows))
    if reason := incomparable(runs):
        sys.stdout.write(f"losses cannot be compared: {reason}\n")
    sys.stdout.write(f"page: {page}\n")


def _write_page(runs: Sequence[NamedRun], page: Path) -> None:
    # Here, not above: drawing loads matplotlib, which the other commands do not need.
    from torchkiln.report._comparison_page import render_comparison

    write_atomic(page, render_comparison(runs))


def _lines(rows: Sequence[SideRow]) -> list[list[str]]:
    return [[row.name, *row.texts] for row in rows]


def _titles(paths: Sequence[Path]) -> list[str]:
    """Return the names of folders; where two are the same, with what lies above them."""
    names = [path.name for path in paths]
    if len(set(names)) == len(names):
        return names
    return [str(path) for path in paths]


def find_runs(output_dir: Path) -> list[StoredRun]:
    """Return the runs below a folder, newest first.

    Raises:
        OptionsError: The folder cannot be read.
    """
    folders = folders_in(output_dir, "--output_dir")
    found = [run for path in folders if (run := _look_at(path)) is not None]
    return sorted(found, key=lambda run: (-run.time_s, run.path.name))


def _look_at(path: Path) -> StoredRun | None:
    """Return the run of a folder; None if no run left anything there."""
    results = path / RESULTS_NAME
    try:
        if is_claimed(path):
            return StoredRun(path=path, time_s=path.stat().st_mtime, status=_RUNNING)
        if not results.is_file():
            return None
        time_s = results.stat().st_mtime
    except OSError:  # it has gone meanwhile, or is somebody else's
        return None
    try:
        result = read_run(path)
    except (StoreError, OSError) as error:
        return StoredRun(path=path, time_s=time_s, status=_DAMAGED, problem=str(error))
    return StoredRun(path=path, time_s=time_s, status=result.status, result=result)


def find_run(name: str, output_dir: Path) -> Path:
    """Return the folder of a run: its name below `output_dir`, or a path.

    Raises:
        OptionsError: There is none; those that are similar are named.
    """
    for path in (output_dir / name, Path(name)):
        if (path / RESULTS_NAME).is_file():
            return path
    runs = find_runs(output_dir)
    if any(run.path.name == name for run in runs):
        raise OptionsError(f"the run {name!r} in {output_dir} has no results yet; wait for its end")
    known = [run.path.name for run in runs]
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    raise OptionsError(
        f"there is no run {name!r} in {output_dir}; "
        + (
            f"did you mean {close[0]!r}?"
            if close
            else "`torchkiln runs list` shows which there are"
        )
    )


def read_run(path: Path) -> RunResult:
    """Return the result in the folder of a run, of whichever application.

    Raises:
        StoreError: It is damaged.
    """
    if is_cosmic(path / RESULTS_NAME):
        return read_cosmic(path / RESULTS_NAME)
    return load_result(path)


def _cells(run: StoredRun) -> list[str]:
    result = run.result
    start = [run.path.name, shown_time(run.time_s)]
    if result is None:
        return [*start, "", "", "", "", run.status, "", ""]
    rate = result.samples_per_s
    status = "beaten by baseline" if result.is_beaten else run.status
    return [
        *start,
        str(result.dataset.get("name", "")),
        str(result.dataset.get("target", "")),
        _model(result),
        str(len(result.epochs)),
        status,
        _error(result),
        "" if rate is None else significant(rate, 4),
    ]


def _model(result: RunResult) -> str:
    name, parameters = result.model.get("name", ""), result.model.get("parameters")
    return f"{name}, {parameters:,}" if isinstance(parameters, int) else str(name)


def _error(result: RunResult) -> str:
    if result.test is not None:
        return format_short_error(result.test.mae, result.unit)
    figures = result.epochs[-1].figures if result.epochs else {}
    iou = figures.get("held_out/mean_iou")
    return "" if iou is None else f"mean IoU {significant(iou)}"
