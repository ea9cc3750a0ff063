"""Predictions for people (a table) and for other programs (CSV, extended xyz)."""

from __future__ import annotations

import math
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from torchkiln.commands._predictions import Predictions
from torchkiln.core._console import make_console
from torchkiln.datasets.files._elements import formula
from torchkiln.datasets.files._write import write_csv, write_extxyz
from torchkiln.report._units import error_scale, format_error, format_seconds, with_unit

_DECIMALS = 4


def print_table(predictions: Predictions, model_name: str, *, rows: int, seconds: float) -> None:
    """Print the first `rows` molecules, and a closing line about all."""
    from rich.markup import escape
    from rich.table import Table

    molecules, count = predictions.molecules, len(predictions.molecules)
    target = with_unit(predictions.target, f"({predictions.unit})" if predictions.unit else "")
    known = np.isfinite(predictions.references)
    scale = error_scale(predictions.unit)
    table = Table(title=f"{target} by {model_name}", title_justify="left")
    several = len(set(predictions.files)) > 1
    table.add_column("molecule", overflow="fold")
    table.add_column("formula", overflow="fold")
    headings = ["atoms", "predicted"]
    if known.any():
        headings += ["reference", _error_heading(scale.unit)]
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True)
    for index in range(min(rows, count)):
        atoms = slice(molecules.offsets[index], molecules.offsets[index + 1])
        cells = [
            _label(predictions, index, with_file=several),
            formula(molecules.z[atoms].tolist()),
            str(atoms.stop - atoms.start),
            f"{predictions.values[index]:,.{_DECIMALS}f}",
        ]
        if known.any():
            error = predictions.values[index] - predictions.references[index]
            cells += [
                _known(predictions.references[index], f",.{_DECIMALS}f"),
                _known(error * scale.factor, "+,.2f"),
            ]
        table.add_row(*(escape(cell) for cell in cells))
    console = make_console()
    console.print(table)
    if rows < count:
        console.print(
            f"and {count - rows:,} more; --rows {count} shows them, --output FILE.csv writes them"
        )
    console.print(_closing_line(predictions, known, seconds), highlight=False)


def _error_heading(unit: str) -> str:
    return with_unit("error", f"({unit})" if unit else "")


def _label(predictions: Predictions, index: int, *, with_file: bool) -> str:
    """Return the name of a molecule, or its number in the file, and the file if it matters."""
    names = predictions.molecules.names
    label = (names[index] if names else "") or f"#{predictions.frames[index]}"
    return f"{Path(predictions.files[index]).name}: {label}" if with_file else label


def _known(value: float, form: str) -> str:
    return "" if math.isnan(value) else format(value, form)


def _closing_line(predictions: Predictions, known: NDArray[np.bool_], seconds: float) -> str:
    count = len(predictions.molecules)
    line = f"{count:,} molecule{'s' * (count != 1)} in {format_seconds(seconds)}"
    if not known.any():
        return line
    errors = np.abs(predictions.values - predictions.references)[known]
    of = "" if known.all() else f" of {int(known.sum()):,} with a reference"
    mean = format_error(float(errors.mean()), predictions.unit)
    return f"{line}; mean absolute error {mean}{of}{_taken_unit(predictions)}"


def _taken_unit(predictions: Predictions) -> str:
    """Say in which unit references are taken to be: files of people do not tell it."""
    target, unit = predictions.target, predictions.unit
    if not unit or predictions.molecules.units.get(target) == unit:
        return ""
    return f", if the files give {target} in {unit}"


def write_output(predictions: Predictions, output: Path) -> None:
    """Write all predictions in the format that the suffix of `output` tells."""
    if output.suffix.lower() == ".csv":
        _write_table(predictions, output)
        return
    write_extxyz(
        output, predictions.molecules, {f"predicted_{predictions.target}": predictions.values}
    )


def _write_table(predictions: Predictions, output: Path) -> None:
    molecules = predictions.molecules
    ends = molecules.offsets.tolist()
    columns = {
        "file": predictions.files,
        "frame": predictions.frames,
        "name": molecules.names or [""] * len(molecules),
        "formula": [formula(molecules.z[begin:end].tolist()) for begin, end in pairwise(ends)],
        "atoms": molecules.num_atoms.tolist(),
        f"predicted_{predictions.target}": predictions.values.tolist(),
        "unit": [predictions.unit] * len(molecules),
    }
    if np.isfinite(predictions.references).any():
        columns["reference"] = predictions.references.tolist()
        columns["error"] = (predictions.values - predictions.references).tolist()
    write_csv(output, columns)
