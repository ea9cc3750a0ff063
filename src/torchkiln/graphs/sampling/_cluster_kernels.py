"""The loops of graph partitioning, compiled.

Graphs are undirected and weighted, in CSR form: `offsets`, `targets`, `weights` of edges (each edge
is there in both directions) and `sizes` of nodes. `parts[u]` is the part of node `u`, and `loads`
are the total sizes of the parts.
"""

# Numba has no types; its decorator hides those of the functions.
# mypy: allow-untyped-decorators

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from torchkiln.graphs.sampling._random_kernels import shuffle


@njit(cache=True)
def merge_edges(num_nodes: int, ends_a: Any, ends_b: Any, weights: Any) -> Any:
    """Return the CSR form of edges given by their ends; repeated ones are added up, loops dropped.

    Every edge must be there in both directions.
    """
    starts = np.zeros(num_nodes + 1, np.int64)
    for a in ends_a:
        starts[a + 1] += 1
    for node in range(num_nodes):
        starts[node + 1] += starts[node]
    order = np.empty(len(ends_a), np.int64)
    fill = starts[:-1].copy()
    for edge in range(len(ends_a)):
        order[fill[ends_a[edge]]] = edge
        fill[ends_a[edge]] += 1
    offsets = np.empty(num_nodes + 1, np.int64)
    targets, sums = np.empty(len(ends_a), np.int64), np.empty(len(ends_a), np.int64)
    seen = np.full(num_nodes, -1, np.int64)  # where a target stands, if it is in this row
    place = 0
    for node in range(num_nodes):
        offsets[node] = place
        for i in range(starts[node], starts[node + 1]):
            other, weight = ends_b[order[i]], weights[order[i]]
            if other == node:
                continue
            if seen[other] >= offsets[node]:
                sums[seen[other]] += weight
            else:
                seen[other] = place
                targets[place] = other
                sums[place] = weight
                place += 1
    offsets[num_nodes] = place
    return offsets, targets[:place].copy(), sums[:place].copy()


@njit(cache=True)
def cluster_nodes(
    offsets: Any, targets: Any, weights: Any, sizes: Any, parts: Any, limit: int, state: Any
) -> Any:
    """Return a cluster for each node, numbered from 0, and their number.

    A node joins the neighbouring cluster that it is tied to most, as long as the cluster stays
    within `limit`, and only inside its own part. Stars and hubs shrink as well as meshes do, which
    matching pairs of nodes would not achieve.
    """
    num_nodes = len(sizes)
    cluster = np.arange(num_nodes)
    loads = sizes.copy()
    ties = np.zeros(num_nodes, np.int64)
    order = np.arange(num_nodes)
    for _ in range(3):
        shuffle(order, state)
        for u in order:
            mine = cluster[u]
            for i in range(offsets[u], offsets[u + 1]):
                if parts[targets[i]] == parts[u]:
                    ties[cluster[targets[i]]] += weights[i]
            best, most = mine, ties[mine]
            for i in range(offsets[u], offsets[u + 1]):
                other = cluster[targets[i]]
                if ties[other] > most and loads[other] + sizes[u] <= limit:
                    best, most = other, ties[other]
            for i in range(offsets[u], offsets[u + 1]):
                ties[cluster[targets[i]]] = 0
            if best != mine:
                loads[mine] -= sizes[u]
                loads[best] += sizes[u]
                cluster[u] = best
    numbers = np.full(num_nodes, -1, np.int64)
    count = 0
    for node in range(num_nodes):
        if numbers[cluster[node]] < 0:
            numbers[cluster[node]] = count
            count += 1
        cluster[node] = numbers[cluster[node]]
    return cluster, count


@njit(cache=True)
def grow_parts(
    offsets: Any, targets: Any, weights: Any, sizes: Any, num_parts: int, state: Any
) -> Any:
    """Return a first partition: each part grows from a free node to where it is tied to most."""
    num_nodes = len(sizes)
    parts = np.full(num_nodes, -1, np.int64)
    ties = np.zeros(num_nodes, np.int64)
    order = np.arange(num_nodes)
    shuffle(order, state)
    frontier = np.empty(num_nodes, np.int64)
    left = sizes.sum()
    next_free = 0
    for part in range(num_parts - 1):
        goal, load, size_of_frontier = left / (num_parts - part), 0, 0
        while load < goal:
            best = -1
            for i in range(size_of_frontier):
                if best < 0 or ties[frontier[i]] > ties[frontier[best]]:
                    best = i
            if best < 0:
                while next_free < num_nodes and parts[order[next_free]] >= 0:
                    next_free += 1
                if next_free == num_nodes:
                    break
                u = order[next_free]
            else:
                u = frontier[best]
                size_of_frontier -= 1
                frontier[best] = frontier[size_of_frontier]
            # Stop where the part comes closest to its goal.
            if load > 0 and load + sizes[u] - goal > goal - load:
                ties[u] = 0
                break
            parts[u] = part
            ties[u] = 0
            load += sizes[u]
            for i in range(offsets[u], offsets[u + 1]):
                other = targets[i]
                if parts[other] < 0:
                    if ties[other] == 0:
                        frontier[size_of_frontier] = other
                        size_of_frontier += 1
                    ties[other] += weights[i]
        for i in range(size_of_frontier):
            ties[frontier[i]] = 0
        left -= load
    for u in range(num_nodes):
        if parts[u] < 0:
            parts[u] = num_parts - 1
    return parts


@njit(cache=True)
def sum_loads(parts: Any, sizes: Any, num_parts: int) -> Any:
    loads = np.zeros(num_parts, np.int64)
    for u in range(len(parts)):
        loads[parts[u]] += sizes[u]
    return loads


@njit(cache=True)
def refine(
    offsets: Any,
    targets: Any,
    weights: Any,
    sizes: Any,
    parts: Any,
    loads: Any,
    least: int,
    most: int,
    state: Any,
) -> Any:
    """Move nodes to parts that they are tied to more, in place; return by how much the cut fell.

    Moves that change nothing are made if they even out the loads: they open ways to better ones.
    """
    ties = np.zeros(len(loads), np.int64)
    order = np.arange(len(sizes))
    shuffle(order, state)
    total = 0
    for u in order:
        mine = parts[u]
        border = False
        for i in range(offsets[u], offsets[u + 1]):
            border |= parts[targets[i]] != mine
        if not border or loads[mine] - sizes[u] < least:
            continue
        for i in range(offsets[u], offsets[u + 1]):
            ties[parts[targets[i]]] += weights[i]
        best, gain = mine, 0
        for i in range(offsets[u], offsets[u + 1]):
            other = parts[targets[i]]
            if other == mine or loads[other] + sizes[u] > most:
                continue
            better = ties[other] - ties[mine]
            evens = loads[other] + sizes[u] < loads[best] + (sizes[u] if best != mine else 0)
            if better > gain or (better == gain and evens):
                best, gain = other, better
        for i in range(offsets[u], offsets[u + 1]):
            ties[parts[targets[i]]] = 0
        if best != mine:
            parts[u] = best
            loads[mine] -= sizes[u]
            loads[best] += sizes[u]
            total += gain
    return total


@njit(cache=True)
def balance(
    offsets: Any,
    targets: Any,
    weights: Any,
    sizes: Any,
    parts: Any,
    loads: Any,
    least: int,
    most: int,
    state: Any,
) -> None:
    """Move nodes, in place, until every load is between `least` and `most`, cheapest moves first.

    Always succeeds if all nodes have size 1; larger ones may not fit anywhere.
    """
    ties = np.zeros(len(loads), np.int64)
    order = np.arange(len(sizes))
    price = np.int64(0)
    for attempt in range(24):
        if loads.max() <= most and loads.min() >= least:
            return
        anywhere = attempt >= 20
        shuffle(order, state)
        for u in order:
            mine = parts[u]
            too_full = loads[mine] > most
            if not too_full and loads[mine] - sizes[u] < least:
                continue
            for i in range(offsets[u], offsets[u + 1]):
                ties[parts[targets[i]]] += weights[i]
            own = ties[mine]
            best, gain = -1, -price - 1
            for i in range(offsets[u], offsets[u + 1]):
                other = parts[targets[i]]
                fits = loads[other] + sizes[u] <= most
                wanted = too_full or loads[other] < least
                if other != mine and fits and wanted and ties[other] - own > gain:
                    best, gain = other, ties[other] - own
            for i in range(offsets[u], offsets[u + 1]):
                ties[parts[targets[i]]] = 0
            if best < 0 and (anywhere or offsets[u] == offsets[u + 1]):
                lightest: Any = np.argmin(loads)
                fits = loads[lightest] + sizes[u] <= most
                if lightest != mine and fits and (too_full or loads[lightest] < least):
                    best = lightest
            if best >= 0:
                parts[u] = best
                loads[mine] -= sizes[u]
                loads[best] += sizes[u]
        price += price + 1


@njit(cache=True)
def cut_weight(offsets: Any, targets: Any, weights: Any, parts: Any) -> Any:
    """Return the weight of the edges between parts, each counted once."""
    total = np.int64(0)
    for u in range(len(parts)):
        for i in range(offsets[u], offsets[u + 1]):
            if parts[targets[i]] != parts[u]:
                total += weights[i]
    return total // 2
