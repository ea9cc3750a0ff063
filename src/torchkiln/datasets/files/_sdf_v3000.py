"""Tables of atoms in version V3000 of SDF."""

from __future__ import annotations

import math

from torchkiln.datasets.files._positions import read_position
from torchkiln.datasets.files._sdf_record import Record, element_of
from torchkiln.datasets.files._text_lines import TextLines, shorten

_PREFIX = "M  V30 "
_MAX_DIGITS = 18  # of a number of atoms


def read_v3000(lines: TextLines, record: Record) -> tuple[list[int], list[float], int]:
    """Return atomic numbers, coordinates, and where the lines after the table begin."""
    return _read_usual(record) or _read_line_by_line(lines, record)


def _read_usual(record: Record) -> tuple[list[int], list[float], int] | None:
    """Read a table with one line an atom at once; None if anything about it is unusual."""
    content = record.lines
    try:
        begin = content.index(f"{_PREFIX}BEGIN ATOM") + 1
        end = content.index(f"{_PREFIX}END ATOM", begin)
        counts = next(line for line in content[:begin] if line.startswith(f"{_PREFIX}COUNTS "))
        rows = [line.split() for line in content[begin:end]]
        numbers = [element_of(row[3]) for row in rows]
        coordinates = [float(number) for row in rows for number in row[4:7]]
        whole = int(counts.split()[3]) == len(rows) and all(len(row) > 7 for row in rows)
        continued = any(line.endswith("-") for line in content[begin:end])
        if not whole or continued or not math.isfinite(sum(coordinates)):
            return None
        return numbers, coordinates, content.index(f"{_PREFIX}END CTAB", end) + 1
    except (ValueError, IndexError, StopIteration):
        return None


def _read_line_by_line(lines: TextLines, record: Record) -> tuple[list[int], list[float], int]:
    """Read any table, and name mistakes."""
    numbers: list[int] = []
    coordinates: list[float] = []
    promised: int | None = None
    inside = finished = False
    end = len(record.lines)
    for position, text in _joined(record.lines):
        number = record.number(position)
        words = text.split()
        if words[:1] == ["COUNTS"]:
            if len(words) < 2 or not words[1].isdecimal() or len(words[1]) > _MAX_DIGITS:
                raise lines.error(f"{shorten(text)} has no number of atoms", number)
            promised = int(words[1])
        elif words == ["BEGIN", "ATOM"]:
            inside = True
        elif words == ["END", "ATOM"]:
            inside, finished = False, True
        elif words == ["END", "CTAB"]:
            end = position + 1
            break
        elif inside:
            if len(words) < 6:
                raise lines.error(
                    f"an atom should be number, element and three coordinates, not {shorten(text)}",
                    number,
                )
            try:
                numbers.append(element_of(words[1]))
            except ValueError as error:
                raise lines.error(str(error), number) from None
            coordinates += read_position(lines, words[2:5], number)
    if promised is None or (not finished and promised):
        what = "COUNTS" if promised is None else "END ATOM"
        raise lines.error(
            f"the record ends without the line {_PREFIX}{what}",
            record.number(len(record.lines) - 1),
        )
    if promised != len(numbers):
        raise lines.error(
            f"the record promises {promised} atoms and has {len(numbers)}", record.first
        )
    return numbers, coordinates, end


def _joined(content: list[str]) -> list[tuple[int, str]]:
    """Return the lines of a V3000 table with their positions; `-` continues in the next one."""
    joined: list[tuple[int, str]] = []
    open_line: tuple[int, str] | None = None
    for position, line in enumerate(content):
        if not line.startswith(_PREFIX.rstrip()):
            continue
        text = line[len(_PREFIX) :].rstrip()
        start, before = open_line or (position, "")
        if text.endswith("-"):
            open_line = (start, before + text[:-1])
        else:
            joined.append((start, before + text))
            open_line = None
    return joined
