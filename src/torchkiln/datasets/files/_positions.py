"""Coordinates as they stand in files, and what is wrong with them."""

from __future__ import annotations

import math

from torchkiln.datasets.files._text_lines import TextLines, to_number


def read_position(lines: TextLines, texts: list[str], number: int) -> list[float]:
    """Return the coordinates of an atom that stands in line `number`."""
    position = []
    for axis, text in zip("xyz", texts, strict=True):
        try:
            value = to_number(text)
        except ValueError:
            raise lines.error(f"{axis} is {text!r}, not a number", number) from None
        if not math.isfinite(value):
            raise lines.error(f"{axis} is {text}; coordinates must be finite numbers", number)
        position.append(value)
    return position


def require_extent(lines: TextLines, coordinates: list[float], first: int) -> None:
    """Raise for several atoms that all lie in one point: a file without coordinates."""
    count = len(coordinates) // 3
    if count > 1 and coordinates[:3] == coordinates[3:6] and coordinates == coordinates[:3] * count:
        raise lines.error(
            f"all {count} atoms have the coordinates {coordinates[:3]}; the file has no 3D "
            "structure",
            first,
        )
