"""Targets that stand in a .csv beside the molecules."""

from __future__ import annotations

import csv
import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from torchkiln.core import StoreError
from torchkiln.datasets.molecules._molecules import Molecules
from torchkiln.datasets.molecules._published_targets import (
    QM9_TARGETS,
    QM9_UNITS,
    TARGET_COLUMNS,
    in_pyg_units,
    published_name,
)


@dataclass(frozen=True, slots=True)
class TargetTable:
    """Numbers by column.

    Args:
        path: Of the file.
        names: Of the rows, from the first column without numbers.
        columns: By name.
        units: Of the columns whose unit is certain, which are those of QM9's own table.
    """

    path: Path
    names: list[str] | None
    columns: Mapping[str, NDArray[np.float64]]
    units: Mapping[str, str] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))


def table_beside(path: Path) -> Path | None:
    """Return the .csv that belongs to a file of molecules: `molecules.xyz.csv` or `molecules.csv`.

    None if there is none.
    """
    plain = path.with_suffix("") if path.suffix == ".gz" else path
    candidates = [plain.with_name(f"{plain.name}.csv"), plain.with_suffix(".csv")]
    return next((candidate for candidate in candidates if candidate.is_file()), None)


def read_target_table(path: Path) -> TargetTable:
    """Read a table with a header; columns whose first cell is no number are texts.

    The published gdb9.sdf.csv is known by its columns and comes in PyG's names and units.

    Raises:
        StoreError: naming file and line.
    """
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.reader(file)
            rows = [(reader.line_num, row) for row in reader]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise StoreError(f"{path} is no table of targets: {error}") from error
    (_, header), *rest = rows or [(1, [])]
    # A blank line at the end is no row.
    numbered = [(number, row) for number, row in rest if row]
    if not header or not numbered:
        raise StoreError(f"{path}, line 1: a header with names and a row for each molecule wanted")
    for number, row in numbered:
        if len(row) != len(header):
            raise StoreError(
                f"{path}, line {number}: {len(row)} cells, but the header has {len(header)}; the "
                "file may be cut off"
            )
    body = [row for _, row in numbered]
    texts = [i for i, cell in enumerate(body[0]) if not _is_number(cell)]
    numeric = [i for i in range(len(header)) if i not in texts]
    if not numeric:
        raise StoreError(f"{path}, line 2: there is no number among {body[0]}")
    twice = [
        name for name, count in Counter(header[i].strip() for i in numeric).items() if count > 1
    ]
    if twice:
        raise StoreError(f"{path}, line 1: two columns are called {twice[0]!r}; rename one of them")
    columns = {header[i].strip(): _column(path, header[i], i, numbered) for i in numeric}
    names = [row[texts[0]].strip() for row in body] if texts else None
    units: Mapping[str, str] = {}
    if set(TARGET_COLUMNS) <= columns.keys():
        units = QM9_UNITS
        columns = {
            target: in_pyg_units(target, columns[published_name(target)]) for target in QM9_TARGETS
        }
    return TargetTable(path, names, columns, units)


def with_table(molecules: Molecules, table: TargetTable) -> Molecules:
    """Return `molecules` with the targets of a table, by name if both have names, else by order.

    Names that are the same in the same order say nothing more, so they may repeat themselves.

    Raises:
        StoreError: if a molecule has no row, or several.
    """
    names = molecules.names
    if names is not None and table.names is not None and names != table.names:
        row_of = {name: row for row, name in enumerate(table.names)}
        missing = [name for name in names if name not in row_of]
        if not missing:
            _require_one_row_each(names, table)
            rows = [row_of[name] for name in names]
            chosen = {key: column[rows] for key, column in table.columns.items()}
            return molecules.with_targets(chosen, table.units)
        if len(missing) < len(molecules) or len(table) != len(molecules):
            raise StoreError(
                f"{table.path} has no row for the molecule {missing[0]!r} of {molecules.source} "
                f"({len(missing)} of {len(molecules)} are missing)"
            )
    if len(table) != len(molecules):
        raise StoreError(
            f"{table.path} has {len(table)} rows for {len(molecules)} molecules of "
            f"{molecules.source}; give each molecule a row, or both of them names"
        )
    return molecules.with_targets(table.columns, table.units)


def _require_one_row_each(names: list[str], table: TargetTable) -> None:
    counts = Counter(table.names)
    twice = next((name for name in names if counts[name] > 1), None)
    if twice is not None:
        raise StoreError(
            f"{table.path} has {counts[twice]} rows for {twice!r}; give rows different names, or "
            "all of them in the order of the molecules"
        )


def _is_number(cell: str) -> bool:
    try:
        float(cell or "nan")
    except ValueError:
        return False
    return True


def _column(
    path: Path, name: str, index: int, rows: list[tuple[int, list[str]]]
) -> NDArray[np.float64]:
    try:
        return np.array([float(row[index] or math.nan) for _, row in rows])
    except ValueError:
        number, row = next((n, row) for n, row in rows if not _is_number(row[index]))
        raise StoreError(
            f"{path}, line {number}: {name.strip()!r} is {row[index]!r}, not a number"
        ) from None
