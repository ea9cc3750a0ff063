"""Where to cut a row of segments so that the heaviest piece is as light as possible."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence

# The slowest stage may be slower by these factors, if it then needs less memory; a larger one only
# if memory is short.
_TOLERANCES = (1.02, 1.1, 1.25, 1.5, 2.0)


def cut_evenly(
    seconds: Sequence[float],
    num_pieces: int,
    allowed: Collection[int],
    memory: Callable[[int, int, int], float],
    limit: float | None = None,
) -> list[int] | None:
    """Return where pieces after the first begin; None if there are too few places.

    The slowest piece is as fast as it can be, to about two percent; of all such ways the one is
    taken whose largest piece needs least memory. If that is over the limit, more time is given up.

    Args:
        seconds: Of each segment.
        num_pieces: How many there shall be.
        allowed: Segments with which a piece may begin.
        memory: Of the piece of a number that has the segments from the first to before the second.
        limit: Of the memory of a piece.
    """
    sums = [0.0]
    for value in seconds:
        sums.append(sums[-1] + value)

    def time(piece: int, start: int, end: int) -> float:
        return sums[end] - sums[start]

    fastest = _least(len(seconds), num_pieces, allowed, time)
    if fastest is None:
        return None
    best: list[int] | None = None
    least = math.inf
    for tolerance in _TOLERANCES:
        longest = tolerance * fastest[0]

        def cost(piece: int, start: int, end: int, longest: float = longest) -> float:
            # Sums of floats: equal pieces may differ in the last place.
            is_too_long = time(piece, start, end) > longest * (1 + 1e-9)
            return math.inf if is_too_long else memory(piece, start, end)

        found = _least(len(seconds), num_pieces, allowed, cost)
        if found is not None and found[0] < least:
            least, best = found
        if limit is None or least <= limit:
            break
    return best if best is not None else fastest[1]


def _least(
    count: int,
    num_pieces: int,
    allowed: Collection[int],
    cost: Callable[[int, int, int], float],
) -> tuple[float, list[int]] | None:
    """Return the least possible largest cost of a piece, and where pieces begin for it."""
    places = [0, *sorted(place for place in allowed if 0 < place < count), count]
    # The best way to end a piece at each place, with the places where its pieces begin.
    ways: dict[int, tuple[float, list[int]]] = {0: (0.0, [])}
    for piece in range(num_pieces):
        following: dict[int, tuple[float, list[int]]] = {}
        for end in places:
            for start, (before, begins) in ways.items():
                if start >= end or (piece == num_pieces - 1) != (end == count):
                    continue
                value = max(before, cost(piece, start, end))
                if value < following.get(end, (math.inf, []))[0]:
                    following[end] = value, [*begins, start]
        ways = following
    if count not in ways:
        return None
    value, begins = ways[count]
    return value, begins[1:]
