"""The published files of QM9 that PyG reads where RDKit is installed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from torchkiln.datasets.molecules._published_targets import TARGET_COLUMNS
from torchkiln.datasets.qm9._arrays import QM9Arrays
from torchkiln.datasets.qm9._smiles import ATOMIC_NUMBERS

_SYMBOLS = {number: symbol for symbol, number in ATOMIC_NUMBERS.items()}
# PyG skips nine lines at the top of the list of molecules left out, and one at its end.
_LIST_HEADER = """\
Molecules of QM9 that failed the consistency check of its authors (3,054 in all):
geometries that relaxed to something else than their SMILES says. They are not part of the
tables of qm9pack, from which these files were made. In gdb9.sdf an empty record stands
in the place of each, and a row of nan in gdb9.sdf.csv, so that the others keep
their numbers; PyG reads this list and leaves them out.

Written by `torchkiln data qm9`.

Index
"""


def missing_indices(arrays: QM9Arrays) -> list[int]:
    """Return the numbers up to the last molecule that no molecule has."""
    everything = np.arange(1, int(arrays.index[-1]) + 1)
    missing: list[int] = np.setdiff1d(everything, arrays.index, assume_unique=True).tolist()
    return missing


def write_list_of_missing(arrays: QM9Arrays, path: Path) -> None:
    """Write uncharacterized.txt."""
    missing = missing_indices(arrays)
    lines = "".join(f"{index:>9}\n" for index in missing)
    path.write_text(f"{_LIST_HEADER}{lines}{len(missing)} molecules\n", encoding="utf-8")


def write_target_table(arrays: QM9Arrays, path: Path) -> None:
    """Write gdb9.sdf.csv: one row for each number, of nan where there is no molecule."""
    rows = {index: ",".join(["nan"] * len(TARGET_COLUMNS)) for index in missing_indices(arrays)}
    for index, values in zip(arrays.index.tolist(), arrays.targets.tolist(), strict=True):
        rows[index] = ",".join(map(repr, values))
    with path.open("w", encoding="utf-8") as file:
        file.write(f"mol_id,{','.join(TARGET_COLUMNS)}\n")
        file.writelines(f"gdb_{index},{rows[index]}\n" for index in sorted(rows))


def write_sdf(arrays: QM9Arrays, path: Path) -> None:
    """Write gdb9.sdf, one record for each number.

    Records are V3000: the older form rounds coordinates to four decimals, and then the file would
    not say the same as the tables.
    """
    with path.open("w", encoding="utf-8") as file:
        written = 0
        for record, index in zip(_records(arrays), arrays.index.tolist(), strict=True):
            for absent in range(written + 1, index):
                file.write(_record(absent, [], []))
            file.write(record)
            written = index


def _records(arrays: QM9Arrays) -> Iterator[str]:
    atom_ends, bond_ends = arrays.offsets.tolist(), arrays.bond_offsets.tolist()
    indices = arrays.index.tolist()
    for i in range(len(arrays)):
        atoms = slice(atom_ends[i], atom_ends[i + 1])
        bonds = slice(bond_ends[i], bond_ends[i + 1])
        atom_lines = [
            f"{number} {_SYMBOLS[z]} {x!r} {y!r} {height!r} 0{f' CHG={charge}' if charge else ''}"
            for number, (z, (x, y, height), charge) in enumerate(
                zip(
                    arrays.z[atoms].tolist(),
                    arrays.pos[atoms].tolist(),
                    arrays.charges[atoms].tolist(),
                    strict=True,
                ),
                start=1,
            )
        ]
        bond_lines = [
            f"{number} {order} {first + 1} {second + 1}"
            for number, (order, (first, second)) in enumerate(
                zip(
                    arrays.bond_orders[bonds].tolist(),
                    arrays.bond_ends[bonds].tolist(),
                    strict=True,
                ),
                start=1,
            )
        ]
        yield _record(indices[i], atom_lines, bond_lines)


def _record(index: int, atom_lines: list[str], bond_lines: list[str]) -> str:
    body = [
        "BEGIN CTAB",
        f"COUNTS {len(atom_lines)} {len(bond_lines)} 0 0 0",
        "BEGIN ATOM",
        *atom_lines,
        "END ATOM",
        *(["BEGIN BOND", *bond_lines, "END BOND"] if bond_lines else []),
        "END CTAB",
    ]
    lines = "\n".join(f"M  V30 {line}" for line in body)
    return (
        f"gdb_{index}\n  Torchkiln         3D\n\n  0  0  0     0  0            999 V3000\n"
        f"{lines}\nM  END\n$$$$\n"
    )
