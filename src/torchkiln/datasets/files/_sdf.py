"""Records of SDF and mol files, V2000 and V3000, with their data fields."""

from __future__ import annotations

import math
import re

from torchkiln.core import warn_user
from torchkiln.datasets.files._builder import MoleculeBuilder
from torchkiln.datasets.files._positions import read_position, require_extent
from torchkiln.datasets.files._sdf_record import Record, element_of
from torchkiln.datasets.files._sdf_v3000 import read_v3000
from torchkiln.datasets.files._text_lines import TextLines, shorten

_RECORD_END = "$$$$"
_HEADER_LINES = 4
_FIELD = re.compile(r">[^<]*<(?P<name>[^>]+)>")


def read_sdf(lines: TextLines, builder: MoleculeBuilder) -> None:
    """Hand all records to `builder`; those without any atom are left out, with one warning.

    Raises:
        StoreError: with the line that is not as it should be.
    """
    num_empty, more = 0, True
    while more:
        first = lines.number + 1
        content, more = lines.until(_RECORD_END)
        if not more and not any(line.strip() for line in content):
            break
        num_empty += not _read_record(lines, Record(content, first), builder)
    if num_empty:
        warn_user(f"{lines.path}: {num_empty} records have no atoms and are left out")


def _read_record(lines: TextLines, record: Record, builder: MoleculeBuilder) -> bool:
    """Add the molecule of a record; return whether it has atoms."""
    if len(record.lines) < _HEADER_LINES:
        raise lines.error(
            f"the record has {len(record.lines)} lines; it needs a title, two more header lines "
            "and a line of counts",
            record.number(max(len(record.lines) - 1, 0)),
        )
    counts = record.lines[3]
    read_atoms = read_v3000 if "V3000" in counts else _read_v2000
    numbers, coordinates, end = read_atoms(lines, record)
    if not numbers:
        return False
    if record.lines[1][20:22].upper() == "2D" and not any(coordinates[2::3]):
        raise lines.error(
            "the record is a drawing (2D); make a 3D structure of it first",
            record.number(1),
        )
    require_extent(lines, coordinates, record.number(_HEADER_LINES))
    fields = _read_fields(record.lines[end:])
    builder.add(numbers, coordinates, name=record.lines[0].strip(), values=fields)
    return True


def _read_v2000(lines: TextLines, record: Record) -> tuple[list[int], list[float], int]:
    """Return atomic numbers, coordinates, and where the lines after atoms and bonds begin."""
    num_atoms, num_bonds = _read_counts(lines, record)
    begin, end = _HEADER_LINES, _HEADER_LINES + num_atoms
    atoms = record.lines[begin:end]
    rows = [line.split() for line in atoms]
    try:
        numbers = [element_of(row[3]) for row in rows]
        coordinates = [float(number) for row in rows for number in row[:3]]
    except (ValueError, IndexError):
        numbers, coordinates = [], []
    if len(numbers) < num_atoms or not math.isfinite(sum(coordinates)):
        numbers, coordinates = _read_fixed_columns(lines, record, num_atoms)
    _check_bonds(lines, record, end, num_atoms, num_bonds)
    return numbers, coordinates, end + num_bonds


def _read_counts(lines: TextLines, record: Record) -> tuple[int, int]:
    """Read atoms and bonds: three columns each, which run together above 99."""
    text = record.lines[3]
    words = text.split()
    for atoms, bonds in ((text[:3], text[3:6]), (words[:1], words[1:2])):
        try:
            counts = int("".join(atoms)), int("".join(bonds))
        except ValueError:
            continue
        if min(counts) >= 0:
            return counts
    raise lines.error(
        f"the numbers of atoms and bonds should stand in the fourth line of a record, not "
        f"{shorten(text)}",
        record.number(3),
    )


def _read_fixed_columns(
    lines: TextLines, record: Record, num_atoms: int
) -> tuple[list[int], list[float]]:
    """Read atoms one by one by the columns of the format, and name mistakes."""
    numbers: list[int] = []
    coordinates: list[float] = []
    promise = f"line {record.number(3)} promises {num_atoms} atoms"
    for index in range(num_atoms):
        position = _HEADER_LINES + index
        number = record.number(position)
        if position >= len(record.lines):
            raise lines.error(
                f"the record ends after {index} of {num_atoms} atoms; {promise}", number - 1
            )
        text = record.lines[position]
        columns = [text[:10], text[10:20], text[20:30], text[31:34]]
        if len(text.split()) >= 4 and not all(column.strip() for column in columns):
            columns = text.split()[:4]
        columns = [column.strip() for column in columns]
        if text.startswith("M  ") or not all(columns):
            raise lines.error(
                f"atom {index + 1} of {num_atoms} should be three coordinates and an element, not "
                f"{shorten(text)}; {promise}",
                number,
            )
        coordinates += read_position(lines, columns[:3], number)
        try:
            numbers.append(element_of(columns[3]))
        except ValueError as error:
            raise lines.error(f"{error} ({promise})", number) from None
    return numbers, coordinates


def _check_bonds(
    lines: TextLines, record: Record, begin: int, num_atoms: int, num_bonds: int
) -> None:
    """Raise if what follows the atoms shows that there are more or fewer than promised."""
    bonds = record.lines[begin : begin + num_bonds]
    for position, text in enumerate(bonds, start=begin):
        if "." in text or not text[:3].strip().isdecimal():
            raise lines.error(
                f"bond {position - begin + 1} of {num_bonds} should be numbers of atoms, not "
                f"{shorten(text)}; line {record.number(3)} promises {num_atoms} atoms and "
                f"{num_bonds} bonds",
                record.number(position),
            )
    if len(bonds) < num_bonds:
        raise lines.error(
            f"the record ends after {len(bonds)} of {num_bonds} bonds",
            record.number(len(record.lines) - 1),
        )


def _read_fields(content: list[str]) -> dict[str, str]:
    """Return the data fields of one line each: `> <name>`, the value, a blank line."""
    fields: dict[str, str] = {}
    for position, line in enumerate(content):
        match = _FIELD.match(line)
        if match is None:
            continue
        value = content[position + 1 : position + 3]
        if value and value[0].strip() and not "".join(value[1:]).strip():
            fields[match["name"]] = value[0].strip()
    return fields
