"""The loops of neighbour sampling, compiled: drawing edges, and numbering what was drawn.

Neighbourhoods are ranges `starts[i]..ends[i]` of a graph in CSC form, one for each node of the
frontier. Every drawing function returns the positions that it drew and, for each, its `i`.
"""

# Numba has no types; its decorator hides those of the functions.
# mypy: allow-untyped-decorators

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from torchkiln.graphs.sampling._random_kernels import draw_below, draw_unit, mix

# Up to here, looking through the few numbers already drawn is faster than walking the whole range.
_FEW = 64
_FREE = np.int64(-1)


@njit(cache=True)
def take_all(starts: Any, ends: Any) -> Any:
    total = np.int64(0)
    for i in range(len(starts)):
        total += ends[i] - starts[i]
    edges, owners = np.empty(total, np.int64), np.empty(total, np.int64)
    place = 0
    for i in range(len(starts)):
        for edge in range(starts[i], ends[i]):
            edges[place] = edge
            owners[place] = i
            place += 1
    return edges, owners


@njit(cache=True)
def draw_distinct(starts: Any, ends: Any, count: int, state: Any) -> Any:
    """Draw `count` different positions of each range, all subsets alike; all if there are fewer."""
    total = np.int64(0)
    for i in range(len(starts)):
        total += min(count, ends[i] - starts[i])
    edges, owners = np.empty(total, np.int64), np.empty(total, np.int64)
    place = 0
    for i in range(len(starts)):
        start, size = starts[i], ends[i] - starts[i]
        first = place
        if size <= count:
            for edge in range(start, ends[i]):
                edges[place] = edge
                place += 1
        elif count <= _FEW and size > 2 * count:
            # Floyd: the j-th draw is from the first j positions; one that is taken means j itself.
            for j in range(size - count, size):
                edge = start + draw_below(state, j + 1)
                for k in range(first, place):
                    if edges[k] == edge:
                        edge = start + j
                        break
                edges[place] = edge
                place += 1
        else:
            # Walk the range; take each with the probability that keeps the count exact.
            needed = count
            for j in range(size):
                if draw_below(state, size - j) < needed:
                    edges[place] = start + j
                    place += 1
                    needed -= 1
        owners[first:place] = i
    return edges, owners


@njit(cache=True)
def draw_repeated(starts: Any, ends: Any, count: int, state: Any) -> Any:
    """Draw `count` positions of each range that is not empty, each independently."""
    edges = np.empty(len(starts) * count, np.int64)
    owners = np.empty(len(starts) * count, np.int64)
    place = 0
    for i in range(len(starts)):
        if ends[i] > starts[i]:
            for _ in range(count):
                edges[place] = starts[i] + draw_below(state, ends[i] - starts[i])
                owners[place] = i
                place += 1
    return edges[:place], owners[:place]


@njit(cache=True)
def draw_weighted(
    starts: Any, ends: Any, count: int, weights: Any, repeated: bool, state: Any
) -> Any:
    """Draw by weight; those of weight 0 never.

    Plain loops instead of NumPy's sorting and searching, which take Numba 13 s to compile.
    """
    edges = np.empty(len(starts) * count, np.int64)
    owners = np.empty(len(starts) * count, np.int64)
    place = 0
    for i in range(len(starts)):
        start, size = starts[i], ends[i] - starts[i]
        # One draw for each, the smaller the likelier: distinct ones are those with the smallest.
        keys = np.empty(size, np.float64)
        total = 0.0
        for j in range(size):
            weight = weights[start + j]
            total += weight
            keys[j] = -np.log(draw_unit(state)) / weight if weight > 0.0 else np.inf
        for _ in range(count):
            chosen = -1
            if repeated:
                mark = draw_unit(state) * total
                for j in range(size):
                    # The last one takes what rounding leaves over.
                    if weights[start + j] > 0.0 and mark > 0.0:
                        chosen = j
                        mark -= weights[start + j]
            else:
                for j in range(size):
                    if keys[j] < np.inf and (chosen < 0 or keys[j] < keys[chosen]):
                        chosen = j
            if chosen < 0:
                break
            keys[chosen] = np.inf
            edges[place] = start + chosen
            owners[place] = i
            place += 1
    return edges[:place], owners[:place]


@njit(cache=True)
def clip_by_time(starts: Any, ends: Any, times: Any, limits: Any) -> Any:
    """Return where each range ends if only times up to `limits[i]` count; it is sorted by time."""
    clipped = np.empty(len(starts), np.int64)
    for i in range(len(starts)):
        low, high = starts[i], ends[i]
        while low < high:
            middle = (low + high) // 2
            if times[middle] <= limits[i]:
                low = middle + 1
            else:
                high = middle
        clipped[i] = low
    return clipped


@njit(cache=True)
def _slot_of(table: Any, key: Any) -> Any:
    """Return where `key` is in the open-addressing table, or the free slot where it belongs."""
    mask = np.uint64(len(table) - 1)
    slot = np.int64(mix(np.uint64(key)) & mask)
    while table[slot, 0] != _FREE and table[slot, 0] != key:
        slot = (slot + 1) & np.int64(mask)
    return slot


@njit(cache=True)
def insert_seeds(table: Any, keys: Any) -> None:
    """Number each key by its first place in `keys`."""
    for i in range(len(keys)):
        slot = _slot_of(table, keys[i])
        if table[slot, 0] == _FREE:
            table[slot, 0] = keys[i]
            table[slot, 1] = i


@njit(cache=True)
def insert(table: Any, keys: Any, count: int) -> Any:
    """Return the numbers of `keys`, and those keys that are new, which count on from `count`."""
    numbers, fresh = np.empty(len(keys), np.int64), np.empty(len(keys), np.int64)
    num_fresh = 0
    for i in range(len(keys)):
        slot = _slot_of(table, keys[i])
        if table[slot, 0] == _FREE:
            table[slot, 0] = keys[i]
            table[slot, 1] = count + num_fresh
            fresh[num_fresh] = keys[i]
            num_fresh += 1
        numbers[i] = table[slot, 1]
    return numbers, fresh[:num_fresh]


@njit(cache=True)
def find(table: Any, keys: Any) -> Any:
    """Return the numbers of `keys`, -1 for those that are not in the table."""
    numbers = np.empty(len(keys), np.int64)
    for i in range(len(keys)):
        slot = _slot_of(table, keys[i])
        numbers[i] = table[slot, 1] if table[slot, 0] == keys[i] else _FREE
    return numbers


@njit(cache=True)
def move(table: Any, larger: Any) -> None:
    """Put everything in `table` into the empty table `larger`."""
    for old in range(len(table)):
        if table[old, 0] != _FREE:
            slot = _slot_of(larger, table[old, 0])
            larger[slot, 0] = table[old, 0]
            larger[slot, 1] = table[old, 1]
