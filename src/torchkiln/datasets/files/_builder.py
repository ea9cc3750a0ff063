"""Molecules of a file, collected one by one into flat arrays."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from torchkiln.datasets.files._text_lines import to_number
from torchkiln.datasets.molecules._molecules import Molecules, to_offsets


class MoleculeBuilder:
    """Takes one molecule after the other; `finish` makes `Molecules` of them."""

    def __init__(self) -> None:
        self._sizes: list[int] = []
        self._z = array("B")
        self._pos = array("d")
        self._names: list[str] = []
        self._columns: dict[str, dict[int, float]] = {}
        self._texts: dict[str, None] = {}

    def __len__(self) -> int:
        return len(self._sizes)

    def add(
        self,
        numbers: Sequence[int],
        coordinates: Sequence[float],
        *,
        name: str,
        values: Mapping[str, str],
    ) -> None:
        """Append a molecule.

        Args:
            numbers: Atomic numbers.
            coordinates: x, y, z of each atom in angstrom, one after the other.
            name: Empty if it has none.
            values: What the file says about it. A name becomes a target if it is a number wherever
                it stands.
        """
        index = len(self._sizes)
        self._sizes.append(len(numbers))
        self._z.extend(numbers)
        self._pos.extend(coordinates)
        self._names.append(name)
        for key, text in values.items():
            if key in self._texts:
                continue
            try:
                self._columns.setdefault(key, {})[index] = to_number(text)
            except ValueError:
                self._texts[key] = None
                self._columns.pop(key, None)

    def pass_over(self, labels: Iterable[str]) -> None:
        """Remember labels that the file has and that are no single numbers, such as forces."""
        self._texts.update(dict.fromkeys(labels))

    def finish(self, source: str) -> Molecules:
        """Return everything; values that a molecule lacks are NaN."""
        targets = {}
        for key, known in self._columns.items():
            column = np.full(len(self), np.nan)
            column[list(known)] = list(known.values())
            targets[key] = column
        return Molecules(
            offsets=to_offsets(np.array(self._sizes, dtype=np.int64)),
            z=np.array(self._z, dtype=np.uint8),
            pos=np.array(self._pos).reshape(-1, 3),
            names=self._names if any(self._names) else None,
            targets=targets,
            source=source,
            unread=tuple(self._texts),
        )
