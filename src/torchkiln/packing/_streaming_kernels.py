"""Compiled loops of the algorithms that read graphs as a stream.

`sizes` is [num_graphs, num_axes] in the order of the stream, `capacities` [num_axes]; the last axis
counts graphs, so every graph takes 1 of it. Every graph must fit an empty pack. Results are the
positions in the stream, pack after pack, and the offsets of the packs. Numba takes seconds to
compile array expressions, so there are only loops.
"""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

from torchkiln.packing._sizes import Integers

Floats = NDArray[np.float64]

# Finite, because 0 times infinity is not a number.
_NEVER_FITS = 2.0**60


@njit(cache=True)  # type: ignore[untyped-decorator]
def next_fit(sizes: Integers, capacities: Integers) -> tuple[Integers, Integers]:
    """Close a pack as soon as the next graph does not fit."""
    num_graphs, num_axes = sizes.shape
    offsets = np.zeros(num_graphs + 1, dtype=np.int64)
    order = np.empty(num_graphs, dtype=np.int64)
    free = np.zeros(num_axes, dtype=np.int64)
    num_packs = -1  # nothing is free yet, so the first graph opens a pack
    for graph in range(num_graphs):
        order[graph] = graph
        fits = num_packs >= 0
        for axis in range(num_axes):
            fits &= sizes[graph, axis] <= free[axis]
        if not fits:
            num_packs += 1
            offsets[num_packs] = graph
            for axis in range(num_axes):
                free[axis] = capacities[axis]
        for axis in range(num_axes):
            free[axis] -= sizes[graph, axis]
    offsets[num_packs + 1] = num_graphs
    return order, offsets[: num_packs + 2]


@njit(cache=True)  # type: ignore[untyped-decorator]
def best_fit(
    sizes: Integers, capacities: Integers, window: int, look_ahead: int, last_graphs: float
) -> tuple[Integers, Integers]:
    """Fill one pack at a time from a window of waiting graphs.

    The longest waiting graph opens a pack, so none waits for ever. Then, of the `look_ahead`
    longest waiting ones, the one joins that keeps all axes filling at the same pace; of all waiting
    ones, if an axis is ahead by more than `last_graphs` average graphs. Once there is room for
    about `last_graphs` more, the whole window is searched: first for the graph that leaves room for
    a whole number of average ones, at last for the one that leaves least.
    """
    num_graphs, num_axes = sizes.shape
    num_sizes = num_axes - 1  # without the axis of graphs
    window = min(window, num_graphs)
    mean, least, spare = _statistics(sizes, capacities)
    per_graph = np.zeros(num_axes)  # converts a size to average graphs
    for axis in range(num_axes):
        if mean[axis] > 0:
            per_graph[axis] = 1.0 / mean[axis]

    waiting = np.empty((num_axes, window))  # sizes by axis; floats compare in one instruction each
    position = np.empty(window, dtype=np.int64)
    # A ring of window slots in the order of waiting; slot `window` is where it starts and ends.
    ring = window
    after = np.empty(window + 1, dtype=np.int64)
    before = np.empty(window + 1, dtype=np.int64)
    after[ring] = ring
    before[ring] = ring
    for slot in range(window):
        for axis in range(num_axes):
            waiting[axis, slot] = sizes[slot, axis]
        position[slot] = slot
        _append(after, before, slot)
    arrived = window

    packed = np.empty(num_graphs, dtype=np.int64)
    offsets = np.zeros(num_graphs + 1, dtype=np.int64)
    free = np.empty(num_axes)
    goal = np.empty(num_axes)
    distances = np.empty(window)
    num_packed = 0
    num_packs = 0
    while num_packed < num_graphs:
        for axis in range(num_axes):
            free[axis] = capacities[axis]
        chosen = after[ring]
        while chosen >= 0:
            packed[num_packed] = position[chosen]
            num_packed += 1
            for axis in range(num_axes):
                free[axis] -= waiting[axis, chosen]
            after[before[chosen]] = after[chosen]
            before[after[chosen]] = before[chosen]
            for axis in range(num_axes):
                waiting[axis, chosen] = (
                    sizes[arrived, axis] if arrived < num_graphs else _NEVER_FITS
                )
            if arrived < num_graphs:
                position[chosen] = arrived
                _append(after, before, chosen)
                arrived += 1

            room = np.inf  # in average graphs
            widest = -np.inf
            too_small = False
            for axis in range(num_axes):
                if mean[axis] > 0:
                    room = min(room, free[axis] * per_graph[axis])
                    if axis < num_sizes:
                        widest = max(widest, (free[axis] - spare[axis]) * per_graph[axis])
                too_small |= free[axis] < least[axis]
            if too_small:
                chosen = -1
            elif room > last_graphs:
                # A graph of unusual proportions needs a search for those that make up for it.
                to_see = look_ahead if widest - room < last_graphs else window
                chosen = _find_pace_keeper(waiting, after, free, spare, per_graph, to_see)
            else:
                others = max(np.floor(room + 0.5) - 1.0, 0.0)
                others = min(others, free[num_sizes] - 1.0)
                for axis in range(num_sizes):
                    goal[axis] = free[axis] - spare[axis] - others * mean[axis]
                chosen = _find_closest(waiting, free, goal, per_graph, distances)
        num_packs += 1
        offsets[num_packs] = num_packed
    return packed, offsets[: num_packs + 1]


@njit(cache=True)  # type: ignore[untyped-decorator]
def _find_pace_keeper(
    waiting: Floats,
    after: Integers,
    free: Floats,
    spare: Floats,
    per_graph: Floats,
    to_see: int,
) -> int:
    """Return which of the longest waiting graphs leaves room for equally many on all axes, or -1.

    `to_see` of those that fit are looked at.
    """
    num_axes = len(free)
    ring = len(after) - 1
    best = np.inf
    chosen = -1
    seen = 0
    slot = after[ring]
    while slot != ring and seen < to_see:
        fits = True
        for axis in range(num_axes):
            fits &= waiting[axis, slot] <= free[axis]
        if fits:
            seen += 1
            low, high = np.inf, -np.inf
            for axis in range(num_axes - 1):
                if per_graph[axis] > 0:
                    left = (free[axis] - spare[axis] - waiting[axis, slot]) * per_graph[axis]
                    low = min(low, left)
                    high = max(high, left)
            if high - low < best:
                best = high - low
                chosen = slot
        slot = after[slot]
    return int(chosen)


@njit(cache=True)  # type: ignore[untyped-decorator]
def _find_closest(
    waiting: Floats, free: Floats, goal: Floats, per_graph: Floats, distances: Floats
) -> int:
    """Return the waiting graph that fits and is closest to the size `goal`, or -1.

    `distances` is scratch space: filling it axis by axis keeps the processor's vector units busy.
    """
    window = len(distances)
    for slot in range(window):
        distances[slot] = 0.0
    for axis in range(len(free) - 1):
        for slot in range(window):
            size = waiting[axis, slot]
            distance = per_graph[axis] * abs(goal[axis] - size)
            distances[slot] += distance if size <= free[axis] else np.inf
    best = np.inf
    chosen = -1
    for slot in range(window):
        if distances[slot] < best:
            best = distances[slot]
            chosen = slot
    return chosen


@njit(cache=True)  # type: ignore[untyped-decorator]
def _statistics(sizes: Integers, capacities: Integers) -> tuple[Floats, Floats, Floats]:
    """Return mean and least size by axis, and what no average pack would need of an axis."""
    num_graphs, num_axes = sizes.shape
    mean = np.zeros(num_axes)
    least = np.empty(num_axes)
    for axis in range(num_axes):
        least[axis] = _NEVER_FITS
    for graph in range(num_graphs):
        for axis in range(num_axes):
            mean[axis] += sizes[graph, axis]
            least[axis] = min(least[axis], sizes[graph, axis])
    average_graphs = np.inf
    for axis in range(num_axes):
        mean[axis] /= max(num_graphs, 1)
        if mean[axis] > 0:
            average_graphs = min(average_graphs, capacities[axis] / mean[axis])
    spare = np.zeros(num_axes)
    for axis in range(num_axes):
        if mean[axis] > 0:
            spare[axis] = capacities[axis] - average_graphs * mean[axis]
    return mean, least, spare


@njit(cache=True)  # type: ignore[untyped-decorator]
def _append(after: Integers, before: Integers, slot: int) -> None:
    """Put a slot at the end of the ring."""
    ring = len(after) - 1
    last = before[ring]
    after[last] = slot
    before[slot] = last
    after[slot] = ring
    before[ring] = slot
