"""First-fit decreasing on any number of axes: the textbook contender of benchmarks/packing.py."""

from __future__ import annotations

import numpy as np
from numba import njit

_LIMIT = 64


@njit(cache=True)
def first_fit(sizes: np.ndarray, capacities: np.ndarray) -> np.ndarray:
    """Return the pack of each graph: the first, in order of opening, that has room on every axis.

    A tree over the packs keeps the most that is free below each branch, by axis, so that whole
    branches of full packs are passed over.
    """
    num_graphs, num_axes = sizes.shape
    num_leaves = 1
    while num_leaves < num_graphs:
        num_leaves *= 2
    free = np.empty((2 * num_leaves, num_axes), dtype=np.int64)
    for branch in range(2 * num_leaves):
        for axis in range(num_axes):
            free[branch, axis] = capacities[axis]
    packs = np.empty(num_graphs, dtype=np.int64)
    stack = np.empty(2 * _LIMIT, dtype=np.int64)
    for graph in range(num_graphs):
        stack[0] = 1
        depth = 1
        leaf = -1
        while depth > 0:
            depth -= 1
            branch = stack[depth]
            fits = True
            for axis in range(num_axes):
                fits &= sizes[graph, axis] <= free[branch, axis]
            if not fits:
                continue
            if branch >= num_leaves:
                leaf = branch
                break
            stack[depth] = 2 * branch + 1
            stack[depth + 1] = 2 * branch
            depth += 2
        packs[graph] = leaf - num_leaves
        for axis in range(num_axes):
            free[leaf, axis] -= sizes[graph, axis]
        branch = leaf // 2
        while branch > 0:
            for axis in range(num_axes):
                free[branch, axis] = max(free[2 * branch, axis], free[2 * branch + 1, axis])
            branch //= 2
    return packs


def first_fit_decreasing(sizes: np.ndarray, capacities: np.ndarray) -> np.ndarray:
    """Return the pack of each graph, largest graphs placed first."""
    shares = (sizes / np.maximum(capacities, 1)).max(axis=1)
    order = np.argsort(-shares, kind="stable")
    packs = np.empty(len(sizes), dtype=np.int64)
    packs[order] = first_fit(np.ascontiguousarray(sizes[order]), capacities)
    return packs
