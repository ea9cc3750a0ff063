"""Compiled loops that find which atoms of a molecule interact.

Squares of distances are compared, never distances: `x*x + y*y + z*z` is the same number whichever
atom of a pair is looked at first, so both passes and both directions agree to the last bit.
"""

# Numba has no types; its decorator hides those of the functions.
# mypy: allow-untyped-decorators

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit


@njit(cache=True, nogil=True)
def _square(pos: Any, i: int, j: int) -> Any:
    x = pos[i, 0] - pos[j, 0]
    y = pos[i, 1] - pos[j, 1]
    z = pos[i, 2] - pos[j, 2]
    return x * x + y * y + z * z


@njit(cache=True, nogil=True)
def find_limits(
    pos: Any, offsets: Any, begin: int, end: int, k: int, square: float, limits: Any, last: Any
) -> None:
    """Find for each atom how far its k nearest neighbours reach.

    Args:
        pos: Of all atoms.
        offsets: Of all molecules.
        begin: First molecule to look at.
        end: The one after the last.
        k: How many neighbours an atom may have.
        square: Of the cutoff.
        limits: Result: square of the distance of the k-th neighbour, or of the cutoff.
        last: Result: the largest index that a neighbour just at the limit may have.
    """
    # The nearest ones so far, sorted; atoms come by index, so of equals the first stay ahead.
    near = np.empty(k, dtype=np.float64)
    index = np.empty(k, dtype=np.int64)
    for molecule in range(begin, end):
        first, stop = offsets[molecule], offsets[molecule + 1]
        for i in range(first, stop):
            count = 0
            for j in range(first, stop):
                s = _square(pos, i, j)
                if j == i or s > square or (count == k and s >= near[k - 1]):
                    continue
                at = count if count < k else k - 1
                while at > 0 and near[at - 1] > s:
                    near[at] = near[at - 1]
                    index[at] = index[at - 1]
                    at -= 1
                near[at] = s
                index[at] = j
                count = min(count + 1, k)
            limits[i] = near[k - 1] if count == k else square
            last[i] = index[k - 1] if count == k else stop


@njit(cache=True, nogil=True)
def _ways(s: float, i: int, j: int, limits: Any, last: Any) -> int:
    """Return 1 if j hears i, plus 2 if i hears j."""
    ways = 0
    if s < limits[j] or (s == limits[j] and i <= last[j]):
        ways += 1
    if s < limits[i] or (s == limits[i] and j <= last[i]):
        ways += 2
    return ways


@njit(cache=True, nogil=True)
def count_pairs(
    pos: Any, offsets: Any, begin: int, end: int, square: float, limits: Any, last: Any, counts: Any
) -> None:
    """Count the pairs of each molecule; without `limits` (empty) the cutoff alone decides."""
    for molecule in range(begin, end):
        count = 0
        for i in range(offsets[molecule], offsets[molecule + 1]):
            for j in range(i + 1, offsets[molecule + 1]):
                s = _square(pos, i, j)
                if s <= square:
                    count += len(limits) == 0 or _ways(s, i, j, limits, last) > 0
        counts[molecule] = count


@njit(cache=True, nogil=True)
def fill_pairs(
    pos: Any,
    offsets: Any,
    begin: int,
    end: int,
    square: float,
    limits: Any,
    last: Any,
    pair_offsets: Any,
    edge_index: Any,
    edge_weight: Any,
    edge_ways: Any,
) -> None:
    """Write the pairs of each molecule, in lexicographic order, to where `pair_offsets` says."""
    for molecule in range(begin, end):
        at = pair_offsets[molecule]
        first = offsets[molecule]
        for i in range(first, offsets[molecule + 1]):
            for j in range(i + 1, offsets[molecule + 1]):
                s = _square(pos, i, j)
                if s > square:
                    continue
                ways = 3 if len(limits) == 0 else _ways(s, i, j, limits, last)
                if ways:
                    edge_index[0, at] = i - first
                    edge_index[1, at] = j - first
                    edge_weight[at] = np.sqrt(s)
                    edge_ways[at] = ways
                    at += 1
