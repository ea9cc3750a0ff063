"""Compiled loops of longest-pack-first histogram packing.

Packs with the same content are one *recipe* with a count. Adding a graph to some of them makes a
new recipe that points at the old one, its parent; so a recipe is a path through a tree, and the
tree has one entry per placement, however many packs it stands for. Numba takes seconds to compile
array expressions, so there are only loops.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from torchkiln.packing._sizes import Integers

_MAX_BUCKETS = 8192
_EMPTY = 0  # the recipe of a pack with nothing in it


@njit(cache=True)  # type: ignore[untyped-decorator]
def place_kinds(
    kinds: Integers, counts: Integers, capacities: Integers, last_graphs: float
) -> tuple[Integers, Integers, Integers]:
    """Place all graphs of each kind, in the order given.

    Graphs go to the emptiest pack as long as that has room for `last_graphs` average ones after
    it, then to the fullest that has room at all.

    Returns, by recipe: its parent, the kind that it adds (both -1 for the empty recipe, which comes
    first), and how many packs end with it.
    """
    num_kinds, num_axes = kinds.shape
    least = np.empty(num_axes, dtype=np.int64)
    mean = np.zeros(num_axes)
    scarce = 0  # the axis that runs out first; recipes lie in buckets by what they leave of it
    num_packs = 0.0
    for axis in range(num_axes):
        least[axis] = kinds[0, axis]
        total = 0.0
        num_graphs = 0
        for kind in range(num_kinds):
            least[axis] = min(least[axis], kinds[kind, axis])
            total += counts[kind] * kinds[kind, axis]
            num_graphs += counts[kind]
        mean[axis] = total / num_graphs
        if capacities[axis] > 0 and total / capacities[axis] > num_packs:
            num_packs = total / capacities[axis]
            scarce = axis
    num_buckets = min(capacities[scarce] + 1, _MAX_BUCKETS)
    heads = _filled(num_buckets, -1)

    limit = 1024
    parents = np.empty(limit, dtype=np.int64)
    added = np.empty(limit, dtype=np.int64)
    remaining = np.empty(limit, dtype=np.int64)
    after = np.empty(limit, dtype=np.int64)
    before = np.empty(limit, dtype=np.int64)
    free = np.empty((limit, num_axes), dtype=np.int64)

    # As many packs as all graphs need at least; more are opened where that does not work out.
    parents[_EMPTY] = -1
    added[_EMPTY] = -1
    remaining[_EMPTY] = int(np.ceil(num_packs))
    for axis in range(num_axes):
        free[_EMPTY, axis] = capacities[axis]
    top = num_buckets - 1
    if remaining[_EMPTY] > 0:
        _link(heads, after, before, _EMPTY, top)
    num_recipes = 1

    for kind in range(num_kinds):
        to_place = counts[kind]
        while to_place > 0:
            while top > 0 and heads[top] < 0:
                top -= 1
            host = _find_emptiest(kinds[kind], heads[top], after, free, capacities)
            if host < 0 or _room(free[host], kinds[kind], mean) < last_graphs:
                host = _find_fullest(kinds[kind], heads, after, free, capacities, scarce)
            if num_recipes == limit:
                parents = _grown(parents)
                added = _grown(added)
                remaining = _grown(remaining)
                after = _grown(after)
                before = _grown(before)
                free = _grown_rows(free)
                limit *= 2
            if host < 0:
                # Open as many packs as this kind alone would fill; the next rounds fill them up.
                host = _EMPTY
                remaining[_EMPTY] = _packs_to_open(kinds[kind], to_place, capacities)
                top = num_buckets - 1
                _link(heads, after, before, _EMPTY, top)
            recipe = num_recipes
            num_recipes += 1
            amount = min(to_place, remaining[host])
            to_place -= amount
            remaining[host] -= amount
            if remaining[host] == 0:
                _unlink(heads, after, before, host, _bucket(free[host], capacities, scarce))
            parents[recipe] = host
            added[recipe] = kind
            remaining[recipe] = amount
            can_grow = True
            for axis in range(num_axes):
                free[recipe, axis] = free[host, axis] - kinds[kind, axis]
                can_grow &= free[recipe, axis] >= least[axis]
            if can_grow:
                _link(heads, after, before, recipe, _bucket(free[recipe], capacities, scarce))
    return parents[:num_recipes], added[:num_recipes], remaining[:num_recipes]


@njit(cache=True)  # type: ignore[untyped-decorator]
def expand_packs(
    parents: Integers,
    added: Integers,
    open_packs: Integers,
    members: Integers,
    starts: Integers,
    num_graphs: int,
) -> tuple[Integers, Integers]:
    """Turn recipes into packs: hand out the members of each kind in order."""
    packed = np.empty(num_graphs, dtype=np.int64)
    offsets = np.zeros(num_graphs + 1, dtype=np.int64)
    given = np.empty(len(starts), dtype=np.int64)
    for kind in range(len(starts)):
        given[kind] = starts[kind]
    num_packed = 0
    num_packs = 0
    for recipe in range(_EMPTY + 1, len(parents)):
        for _ in range(open_packs[recipe]):
            step = recipe
            while step != _EMPTY:
                packed[num_packed] = members[given[added[step]]]
                given[added[step]] += 1
                num_packed += 1
                step = parents[step]
            num_packs += 1
            offsets[num_packs] = num_packed
    return packed, offsets[: num_packs + 1]


@njit(cache=True)  # type: ignore[untyped-decorator]
def _find_emptiest(
    size: Integers, first: int, after: Integers, free: Integers, capacities: Integers
) -> int:
    """Return the recipe of a bucket with the largest share left of what will be scarcest, or -1."""
    best = -1.0
    chosen = -1
    recipe = first
    while recipe >= 0:
        share = 1.0
        for axis in range(len(size)):
            if capacities[axis] > 0:
                share = min(share, (free[recipe, axis] - size[axis]) / capacities[axis])
        if share > best and share >= 0.0:
            best = share
            chosen = recipe
        recipe = after[recipe]
    return chosen


@njit(cache=True)  # type: ignore[untyped-decorator]
def _find_fullest(
    size: Integers,
    heads: Integers,
    after: Integers,
    free: Integers,
    capacities: Integers,
    scarce: int,
) -> int:
    """Return the recipe with room for `size` that leaves least, or -1."""
    for bucket in range(_bucket(size, capacities, scarce), len(heads)):
        best = np.inf
        chosen = -1
        recipe = heads[bucket]
        while recipe >= 0:
            fits = True
            left = 0.0
            for axis in range(len(size)):
                fits &= size[axis] <= free[recipe, axis]
                if capacities[axis] > 0:
                    left += free[recipe, axis] / capacities[axis]
            if fits and left < best:
                best = left
                chosen = recipe
            recipe = after[recipe]
        if chosen >= 0:
            return chosen
    return -1


@njit(cache=True)  # type: ignore[untyped-decorator]
def _room(free: Integers, size: Integers, mean: np.ndarray) -> float:
    """Return how many average graphs fit beside one of `size`."""
    room = np.inf
    for axis in range(len(free)):
        if mean[axis] > 0:
            room = min(room, (free[axis] - size[axis]) / mean[axis])
    return room


@njit(cache=True)  # type: ignore[untyped-decorator]
def _bucket(free: Integers, capacities: Integers, scarce: int) -> int:
    num_buckets = min(capacities[scarce] + 1, _MAX_BUCKETS)
    return int(free[scarce] * num_buckets // (capacities[scarce] + 1))


@njit(cache=True)  # type: ignore[untyped-decorator]
def _packs_to_open(size: Integers, count: int, capacities: Integers) -> int:
    copies = count
    for axis in range(len(size)):
        if size[axis] > 0:
            copies = min(copies, capacities[axis] // size[axis])
    return (count + copies - 1) // copies


@njit(cache=True)  # type: ignore[untyped-decorator]
def _filled(length: int, value: int) -> Integers:
    array = np.empty(length, dtype=np.int64)
    for i in range(length):
        array[i] = value
    return array


@njit(cache=True)  # type: ignore[untyped-decorator]
def _grown(array: Integers) -> Integers:
    larger = np.empty(2 * len(array), dtype=np.int64)
    for i in range(len(array)):
        larger[i] = array[i]
    return larger


@njit(cache=True)  # type: ignore[untyped-decorator]
def _grown_rows(array: Integers) -> Integers:
    larger = np.empty((2 * array.shape[0], array.shape[1]), dtype=np.int64)
    for i in range(array.shape[0]):
        for j in range(array.shape[1]):
            larger[i, j] = array[i, j]
    return larger


@njit(cache=True)  # type: ignore[untyped-decorator]
def _link(heads: Integers, after: Integers, before: Integers, recipe: int, bucket: int) -> None:
    after[recipe] = heads[bucket]
    before[recipe] = -1
    if heads[bucket] >= 0:
        before[heads[bucket]] = recipe
    heads[bucket] = recipe


@njit(cache=True)  # type: ignore[untyped-decorator]
def _unlink(heads: Integers, after: Integers, before: Integers, recipe: int, bucket: int) -> None:
    if before[recipe] >= 0:
        after[before[recipe]] = after[recipe]
    else:
        heads[bucket] = after[recipe]
    if after[recipe] >= 0:
        before[after[recipe]] = before[recipe]
