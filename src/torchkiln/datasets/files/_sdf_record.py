"""One record of an SDF file, and what both versions of the format share."""

from __future__ import annotations

from dataclasses import dataclass

from torchkiln.datasets.files._elements import atomic_number


@dataclass(frozen=True, slots=True)
class Record:
    """The lines of one record; `first` is the number of the first in the file."""

    lines: list[str]
    first: int

    def number(self, position: int) -> int:
        """Return the number in the file of the line at `position`."""
        return self.first + position


def element_of(text: str) -> int:
    """Return the atomic number of a symbol; numbers are other columns than the element's."""
    if text.isdecimal():
        raise ValueError(f"{text!r} is no symbol of an element")
    return atomic_number(text)
