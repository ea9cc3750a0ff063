"""Packing a histogram: graphs of equal sizes are counted once and placed together."""

from __future__ import annotations

import numpy as np

from torchkiln.packing._sizes import Integers

# Found on QM9, as the settings of best fit.
_LAST_GRAPHS = 2.0


def pack_histogram(sizes: Integers, capacities: Integers) -> tuple[Integers, Integers]:
    """Place large graphs first, respecting every axis.

    Putting each into the fullest pack that has room, as one does with a single axis, would make
    packs of large graphs only, which run out of edges with nodes to spare. So graphs are first
    spread evenly over as many packs as all need at least, and only the last ones, which are small,
    go where they leave least room.

    Which of several equal graphs goes where follows the order of the stream, so a shuffled stream
    gives other packs; but packs come out in an order of their own.
    """
    from torchkiln.packing._histogram_kernels import expand_packs, place_kinds

    if len(sizes) == 0:
        return np.zeros(0, dtype=np.int64), np.zeros(1, dtype=np.int64)
    kinds, members, starts = _group_equal(sizes)
    # Large means: a large share of some axis; ties are broken by what is left of the other axes.
    shares = kinds / np.maximum(capacities, 1)
    largest_first = np.lexsort((shares.sum(axis=1), shares.max(axis=1)))[::-1]
    counts = np.diff(starts)[largest_first]
    parents, added, open_packs = place_kinds(
        np.ascontiguousarray(kinds[largest_first]), counts, capacities, _LAST_GRAPHS
    )
    packs: tuple[Integers, Integers] = expand_packs(
        parents, added, open_packs, members, starts[:-1][largest_first], len(sizes)
    )
    return packs


def _group_equal(sizes: Integers) -> tuple[Integers, Integers, Integers]:
    """Return the distinct rows, the positions of their members one after another, and starts."""
    keys = _keys(sizes)
    members = np.argsort(keys, kind="stable")
    ordered = keys[members]
    firsts = np.flatnonzero(np.concatenate([[True], ordered[1:] != ordered[:-1]]))
    starts = np.append(firsts, len(sizes))
    return sizes[members[firsts]], members, starts


def _keys(sizes: Integers) -> Integers:
    """Return one number per row, equal for equal rows only."""
    keys = np.zeros(len(sizes), dtype=np.int64)
    radix_limit = np.iinfo(np.int64).max
    span = 1
    for column in sizes.T:
        width = int(column.max()) + 1
        if span * width > radix_limit:
            # Too wide to count in mixed radix: number what was seen so far.
            keys = np.unique(keys, return_inverse=True)[1].astype(np.int64)
            column = np.unique(column, return_inverse=True)[1].astype(np.int64)
            span, width = int(keys.max()) + 1, int(column.max()) + 1
        keys = keys * width + column
        span *= width
    return keys
