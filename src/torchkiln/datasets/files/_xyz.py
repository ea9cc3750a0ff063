"""Frames of xyz files: plain ones, and extended ones whose comment describes the columns."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from torchkiln.core import warn_user
from torchkiln.datasets.files._builder import MoleculeBuilder
from torchkiln.datasets.files._elements import atomic_number
from torchkiln.datasets.files._positions import read_position, require_extent
from torchkiln.datasets.files._text_lines import TextLines, shorten, to_number

# A key begins where a word does: tried at every letter, a long word would take hours.
_PAIR = re.compile(
    r"""(?<![^\s="'}\]])(?P<key>[^\s="']+)\s*=\s*
    (?P<value>"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|\{[^}]*\}|\[[^\]]*\]|[^\s"'{\[][^\s]*)""",
    re.VERBOSE,
)
_ELEMENT_COLUMNS = ("species", "element", "elements", "symbols", "z", "numbers", "atomic_numbers")
_POSITION_COLUMNS = ("pos", "positions", "coords")
# Keys that describe the frame; everything else that is a number is a property.
_NO_PROPERTIES = frozenset({"properties", "lattice", "pbc", "name"})


@dataclass(frozen=True, slots=True)
class _Layout:
    """In which columns of an atom's line its element and its coordinates stand.

    Args:
        element: First column of the element.
        position: First column of the coordinates.
        others: Names of the columns that are not read, such as forces.
    """

    element: int = 0
    position: int = 1
    others: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Comment:
    """What the second line of a frame says."""

    name: str
    values: dict[str, str]
    layout: _Layout
    periodic: bool


def read_xyz(lines: TextLines, builder: MoleculeBuilder) -> None:
    """Hand all frames to `builder`; blank lines between them do not count.

    Raises:
        StoreError: with the line that is not as it should be.
    """
    num_periodic = 0
    while (first := lines.next_filled()) is not None:
        count = _count(lines, first, num_frames=len(builder))
        comment = _read_comment(lines, count)
        begin = lines.number + 1
        numbers, coordinates = _read_atoms(lines, count, comment.layout)
        require_extent(lines, coordinates, begin)
        builder.add(numbers, coordinates, name=comment.name, values=comment.values)
        builder.pass_over(comment.layout.others)
        num_periodic += comment.periodic
    if num_periodic:
        warn_user(
            f"{lines.path}: {num_periodic} of {len(builder)} frames are periodic (Lattice); they "
            'are read as single molecules without images. Write pbc="F F F" if that is meant'
        )


def _count(lines: TextLines, text: str, num_frames: int) -> int:
    words = text.split()
    try:
        count = int(words[0])
    except ValueError:
        hint = ""
        if num_frames and len(words) > 3:
            hint = "; the frame before it has more atoms than its first line says"
        raise lines.error(
            f"the number of atoms should stand here, not {shorten(text)}{hint}"
        ) from None
    if count < 1:
        raise lines.error(f"a frame of {count} atoms is no molecule; remove it")
    return count


def _read_comment(lines: TextLines, count: int) -> _Comment:
    text = lines.next()
    if text is None:
        raise lines.error(f"the file ends before the comment and the {count} atoms of this frame")
    text = text.strip()
    pairs = {match["key"]: _unquoted(match["value"]) for match in _PAIR.finditer(text)}
    if not pairs:
        return _plain_comment(text)
    by_lower_case = {key.lower(): value for key, value in pairs.items()}
    layout = _Layout()
    if "properties" in by_lower_case:
        layout = _read_properties(lines, by_lower_case["properties"])
    values = {key: value for key, value in pairs.items() if key.lower() not in _NO_PROPERTIES}
    if "energy" in by_lower_case:
        values = {key: value for key, value in values.items() if key.lower() != "energy"}
        values["energy"] = by_lower_case["energy"]
        _require_number(lines, values["energy"])
    # As in "cluster 12 energy=-76.4": what is no pair is a name.
    rest = " ".join(_PAIR.sub(" ", text).split()).strip(",; ")
    name = by_lower_case.get("name", rest)
    return _Comment(name, values, layout, _is_periodic(by_lower_case))


def _plain_comment(text: str) -> _Comment:
    """A lone number is the energy, as in HydroNet; any other text is a name."""
    try:
        to_number(text)
    except ValueError:
        return _Comment(text, {}, _Layout(), periodic=False)
    return _Comment("", {"energy": text}, _Layout(), periodic=False)


def _require_number(lines: TextLines, text: str) -> None:
    try:
        to_number(text)
    except ValueError:
        raise lines.error(f"energy={shorten(text)} is not a number") from None


def _unquoted(value: str) -> str:
    if value[0] in "\"'":
        return re.sub(r"\\(.)", r"\1", value[1:-1])
    return value.strip("{}[]").strip() if value[0] in "{[" else value.rstrip(",;")


def _is_periodic(pairs: dict[str, str]) -> bool:
    """Extended xyz: a lattice is periodic unless `pbc` says otherwise."""
    return "lattice" in pairs and "t" in pairs.get("pbc", "T").lower()


def _read_properties(lines: TextLines, text: str) -> _Layout:
    """Read `species:S:1:pos:R:3:forces:R:3`: names, kinds and numbers of columns."""
    words = text.split(":")
    columns: dict[str, int] = {}
    start = 0
    try:
        for name, _, width in zip(words[::3], words[1::3], words[2::3], strict=True):
            columns[name.lower()] = start
            start += int(width)
    except ValueError:
        raise lines.error(
            f"Properties={shorten(text)} should be name:kind:columns, as in species:S:1:pos:R:3"
        ) from None
    element = next((columns[name] for name in _ELEMENT_COLUMNS if name in columns), None)
    position = next((columns[name] for name in _POSITION_COLUMNS if name in columns), None)
    if element is None or position is None:
        missing = "species (or Z)" if element is None else "pos"
        raise lines.error(f"Properties={shorten(text)} has no column {missing}")
    read = (element, position)
    return _Layout(*read, tuple(name for name, first in columns.items() if first not in read))


def _read_atoms(lines: TextLines, count: int, layout: _Layout) -> tuple[list[int], list[float]]:
    first = lines.number + 1
    taken = lines.take(count)
    rows = [line.split() for line in taken]
    element, begin, end = layout.element, layout.position, layout.position + 3
    try:
        numbers = [atomic_number(row[element]) for row in rows]
        coordinates = [float(number) for row in rows for number in row[begin:end]]
    except (ValueError, IndexError):
        pass
    else:
        whole = len(numbers) == count and len(coordinates) == 3 * count
        if whole and math.isfinite(sum(coordinates)):
            return numbers, coordinates
    return _read_odd_atoms(lines, count, layout, taken, first)


def _read_odd_atoms(
    lines: TextLines, count: int, layout: _Layout, taken: list[str], first: int
) -> tuple[list[int], list[float]]:
    """Read atoms one by one: unusual spellings are understood, mistakes are named."""
    numbers: list[int] = []
    coordinates: list[float] = []
    for number, line in enumerate(taken, start=first):
        row = line.split()
        if len(row) < layout.position + 3 or len(row) <= layout.element:
            raise lines.error(
                f"atom {number - first + 1} of {count} should be an element and three "
                f"coordinates, not {shorten(line)}; line {first - 2} promises {count} atoms",
                number,
            )
        try:
            numbers.append(atomic_number(row[layout.element]))
        except ValueError as error:
            raise lines.error(str(error), number) from None
        coordinates += read_position(lines, row[layout.position : layout.position + 3], number)
    if len(taken) < count:
        raise lines.error(
            f"the file ends after {len(taken)} of {count} atoms; line {first - 2} promises {count}"
        )
    return numbers, coordinates
