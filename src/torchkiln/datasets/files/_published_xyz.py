"""The published dsgdb9nsd_*.xyz files of QM9, one molecule each."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from torchkiln.core import StoreError
from torchkiln.core._progress import progress_bar
from torchkiln.datasets.files._elements import symbol_of
from torchkiln.datasets.files._text_lines import to_number, unreadable
from torchkiln.datasets.molecules._molecules import Molecules, to_offsets
from torchkiln.datasets.molecules._published_targets import (
    ATOM_ENERGIES_HARTREE,
    NUM_PROPERTIES,
    QM9_UNITS,
    published_targets,
    qm9_targets,
)

_TAG = "gdb"
_ATOMIC_NUMBERS = {symbol_of(number): number for number in ATOM_ENERGIES_HARTREE}


def is_published_xyz(path: Path) -> bool:
    """Tell whether a file has the properties of QM9 in its second line."""
    try:
        with path.open(encoding="utf-8") as file:
            file.readline()
            return file.readline().split()[:1] == [_TAG]
    except (FileNotFoundError, IsADirectoryError, UnicodeDecodeError):
        return False
    except OSError as error:
        # Not False: the file would be taken for one without targets.
        raise unreadable(path, error) from error


def read_published_xyz(paths: Sequence[Path], *, source: str, progress: bool) -> Molecules:
    """Read files of one molecule each: atoms and properties; charges, frequencies and names stay.

    Raises:
        StoreError: naming file and line.
    """
    indices: list[int] = []
    properties: list[list[float]] = []
    numbers: list[int] = []
    sizes: list[int] = []
    positions: list[float] = []
    for path in progress_bar(paths, desc="Reading QM9", unit=" files", show=progress):
        lines = _read_lines(path)
        size, index, values = _read_head(path, lines)
        for number, line in enumerate(lines[2 : 2 + size], 3):
            z, position = _read_atom(path, number, line)
            numbers.append(z)
            positions += position
        sizes.append(size)
        indices.append(index)
        properties.append(values)
    offsets = to_offsets(np.array(sizes))
    elements = np.array(numbers, dtype=np.uint8)
    return Molecules(
        offsets=offsets,
        z=elements,
        pos=np.array(positions).reshape(-1, 3),
        names=[f"{_TAG}_{index}" for index in indices],
        targets=qm9_targets(published_targets(np.array(properties), elements, offsets)),
        source=source,
        units=QM9_UNITS,
    )


def _read_lines(path: Path) -> list[str]:
    """Return the lines of a small file; names in it may have letters that are no UTF-8."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError as error:
        raise StoreError(f"{path} cannot be read: {error.strerror}; copy it again") from error


def _read_head(path: Path, lines: list[str]) -> tuple[int, int, list[float]]:
    try:
        size = int(lines[0])
    except (IndexError, ValueError):
        raise StoreError(f"{path}, line 1: the number of atoms wanted") from None
    words = lines[1].split() if len(lines) > 1 else []
    try:
        index, values = int(words[1]), [to_number(word) for word in words[2:]]
    except (IndexError, ValueError):
        index, values = 0, []
    if words[:1] != [_TAG] or len(values) != NUM_PROPERTIES:
        raise StoreError(
            f"{path}, line 2: '{_TAG}', a number and {NUM_PROPERTIES} properties wanted"
        )
    # Frequencies, SMILES and InChI follow; without them the last atom may be cut.
    if size < 1 or len(lines) < size + 5:
        raise StoreError(
            f"{path}, line {len(lines)}: the file is cut off; line 1 promises {size} atoms, and "
            "three more lines follow them"
        )
    return size, index, values


def _read_atom(path: Path, number: int, line: str) -> tuple[int, list[float]]:
    words = line.split()
    try:
        position = [to_number(word) for word in words[1:4]]
        if len(position) == 3 and math.isfinite(sum(position)):
            return _ATOMIC_NUMBERS[words[0]], position
    except (IndexError, KeyError, ValueError):
        pass
    elements = ", ".join(_ATOMIC_NUMBERS)
    raise StoreError(f"{path}, line {number}: one of {elements} and three coordinates wanted")
