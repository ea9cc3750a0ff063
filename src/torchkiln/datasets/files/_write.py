"""Molecules with what was computed for them, written so that nobody sees half a file."""

from __future__ import annotations

import csv
import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from torchkiln.core import OptionsError, atomic_path
from torchkiln.datasets.files._elements import symbol_of
from torchkiln.datasets.molecules._molecules import Molecules


def write_extxyz(
    path: str | os.PathLike[str],
    molecules: Molecules,
    predictions: Mapping[str, NDArray[np.float64]] | None = None,
) -> None:
    """Write molecules as extended xyz; `read_molecules` gives back the same numbers.

    Targets and predictions stand in the comments as `name=value`; NaN is left out.

    Raises:
        OptionsError: if predictions are not one number a molecule, or named like a target.
    """
    added = {name: np.asarray(values) for name, values in (predictions or {}).items()}
    for name, values in added.items():
        if values.shape != (len(molecules),):
            raise OptionsError(
                f"{name!r} has shape {list(values.shape)} for {len(molecules)} molecules; wanted "
                "is one number each"
            )
        if name in molecules.targets:
            raise OptionsError(f"{name!r} is a target of the molecules; choose another name")
    with atomic_path(Path(path)) as temporary, temporary.open("w", encoding="utf-8") as file:
        file.writelines(_frames(molecules, {**molecules.targets, **added}))


def _frames(molecules: Molecules, columns: Mapping[str, NDArray[np.float64]]) -> Iterator[str]:
    keys = {name: re.sub(r"[\s=\"'{}\[\]]+", "_", name) for name in columns}
    ends = molecules.offsets.tolist()
    for index in range(len(molecules)):
        atoms = slice(ends[index], ends[index + 1])
        facts = ["Properties=species:S:1:pos:R:3", 'pbc="F F F"']
        if molecules.names is not None and molecules.names[index]:
            facts.append(f"name={_quoted(molecules.names[index])}")
        for name, values in columns.items():
            value = float(values[index])
            if not math.isnan(value):
                facts.append(f"{keys[name]}={value!r}")
        numbers, positions = molecules.z[atoms].tolist(), molecules.pos[atoms].tolist()
        yield f"{len(numbers)}\n{' '.join(facts)}\n"
        for number, (x, y, z) in zip(numbers, positions, strict=True):
            yield f"{symbol_of(number):<2} {x!r} {y!r} {z!r}\n"


def _quoted(text: str) -> str:
    """Return a text in quotes, on one line."""
    escaped = " ".join(text.split()).replace("\\", r"\\").replace('"', r"\"")
    return f'"{escaped}"'


def write_csv(
    path: str | os.PathLike[str], columns: Mapping[str, Sequence[str | int | float]]
) -> None:
    """Write columns of equal length below their names; NaN becomes an empty cell."""
    with (
        atomic_path(Path(path)) as temporary,
        temporary.open("w", encoding="utf-8", newline="") as file,
    ):
        table = csv.writer(file, lineterminator="\n")
        table.writerow(columns)
        for row in zip(*columns.values(), strict=True):
            table.writerow(["" if _is_nan(cell) else cell for cell in row])


def _is_nan(cell: str | int | float) -> bool:
    return isinstance(cell, float) and math.isnan(cell)
