"""Radius and colour of each element."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

# Of elements without an entry, which are the heaviest ones.
_OTHER = (1.6, "#eb4fae")


@cache
def _table() -> tuple[tuple[float, str], ...]:
    """Return radius and colour by atomic number; 0 is no element."""
    lines = Path(__file__).with_name("elements.txt").read_text().splitlines()
    rows = [line.split() for line in lines if not line.startswith("#")]
    return (_OTHER, *((float(radius), colour) for radius, colour in rows))


def _entry(z: int) -> tuple[float, str]:
    table = _table()
    return table[z] if 0 <= z < len(table) else _OTHER


def element_colour(z: int) -> str:
    """Return the usual colour of an element, as "#rrggbb"."""
    return _entry(z)[1]


def covalent_radii(z: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the covalent radius of each atom in angstrom."""
    return np.array([_entry(number)[0] for number in z.tolist()], dtype=np.float64)
