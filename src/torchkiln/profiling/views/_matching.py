"""Which lines of one profile are which lines of another, although the code was edited between."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import PurePath
from typing import Any

from torchkiln.profiling.graph._values import SourceLine

_Place = Callable[[SourceLine], Any]


def match_lines(first: tuple[SourceLine, ...], second: tuple[SourceLine, ...]) -> dict[int, int]:
    """Return the place in `first` of each line of `second` that is the same one.

    Lines are the same if they have the same text in the same function: then it does not matter that
    they moved. What is left may have moved with its file. What is left then, and has the number of
    another, was edited. Each line is used once.
    """
    found: dict[int, int] = {}
    passes: tuple[_Place, ...] = (
        lambda line: (line.file, line.line, line.code.strip()),
        lambda line: _if_text(line, line.file, line.function),
        lambda line: _if_text(line, PurePath(line.file).name, line.function),
        lambda line: (line.file, line.line),
    )
    for key_of in passes:
        left = _by_key(first, set(found.values()), key_of)
        right = _by_key(second, set(found), key_of)
        for key, places in right.items():
            if key is not None:
                # The same text may be there several times; those pair up in their order.
                found.update(zip(places, left.get(key, ()), strict=False))
    return found


def _if_text(line: SourceLine, *where: str) -> tuple[str, ...] | None:
    code = line.code.strip()
    return (*where, code) if code else None


def _by_key(lines: tuple[SourceLine, ...], used: set[int], key_of: _Place) -> dict[Any, list[int]]:
    places: dict[Any, list[int]] = {}
    for place in sorted(range(len(lines)), key=lambda place: lines[place].line):
        if place not in used:
            places.setdefault(key_of(lines[place]), []).append(place)
    return places
