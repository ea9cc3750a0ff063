"""`partition_graph`: parts of equal size with few edges between them (multilevel k-way)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from torchkiln.core import OptionsError
from torchkiln.graphs._spec import to_number

Indices = NDArray[np.int64]

# Parts may differ from the mean by this share; less costs many more cut edges.
_SLACK = 0.05
# A graph is contracted until about this many nodes a part are left.
_COARSE_NODES = 24
# Contracting once more, inside the parts found, and refining again never raises the cut.
_LEAST_CYCLES = 1
# Small graphs cost nothing: they get more cycles and attempts, until about this many edges were
# looked at, and the best attempt wins.
_EDGES_WORTH = 400_000
_MOST_ATTEMPTS = 10
_PASSES = 8
_EDGES_PER_GAIN = 2000
# A round of contraction that leaves more than this is not worth a level.
_LEAST_SHRINK = 0.95


@dataclass(frozen=True, slots=True)
class _Level:
    """An undirected weighted graph in CSR form."""

    offsets: Indices
    targets: Indices
    weights: Indices
    sizes: Indices

    @property
    def edges(self) -> tuple[Indices, Indices, Indices]:
        return self.offsets, self.targets, self.weights


class _Bounds(NamedTuple):
    least: int
    most: int


def partition_graph(
    edge_index: Tensor, num_nodes: int, num_parts: int, *, seed: int = 0, slack: float = _SLACK
) -> Tensor:
    """Return the part of each node, 0 to `num_parts - 1`, as an int64 tensor.

    Edges count in both directions, however they are given; loops do not. The result is a function
    of the arguments. A million edges take a few seconds.

    Args:
        edge_index: [2, num_edges].
        num_nodes: Nodes of the graph.
        num_parts: Parts to make; each gets at least one node.
        seed: Other seeds give other partitions of about the same quality.
        slack: By how much of the mean size a part may be larger or smaller.

    Raises:
        OptionsError: `num_parts` or `slack` is out of range, or an edge leads to no node.
    """
    num_parts = to_number("num_parts", num_parts)
    if not 1 <= num_parts <= max(num_nodes, 1):
        raise OptionsError(
            f"num_parts must be from 1 to {num_nodes}, the number of nodes; got {num_parts}"
        )
    if not 0 <= slack <= 1:
        raise OptionsError(f"slack is a share of the mean size, from 0 to 1; got {slack}")
    edges = edge_index.detach().cpu().to(torch.int64).numpy()
    if edges.size and (edges.min() < 0 or edges.max() >= num_nodes):
        raise OptionsError(
            f"edge_index has nodes from {edges.min()} to {edges.max()}, but there are {num_nodes}"
        )
    if num_parts == 1:
        return torch.zeros(num_nodes, dtype=torch.int64)
    state = np.array([np.random.SeedSequence(seed % 2**64).generate_state(1, np.uint64)[0]])
    level = _build(edges, num_nodes)
    mean = num_nodes / num_parts
    bounds = _Bounds(
        max(1, int(np.floor(mean * (1 - slack)))), max(1, int(np.ceil(mean * (1 + slack))))
    )
    attempts = min(_MOST_ATTEMPTS, 1 + _EDGES_WORTH // max(len(level.targets), 1))
    candidates = (_attempt(level, num_parts, bounds, state, attempts) for _ in range(attempts))
    return torch.from_numpy(min(candidates, key=lambda parts: _cut(level, parts)))


def _attempt(
    level: _Level, num_parts: int, bounds: _Bounds, state: Any, more_cycles: int
) -> Indices:
    parts = np.zeros(len(level.sizes), dtype=np.int64)
    for cycle in range(_LEAST_CYCLES + more_cycles):
        parts = _run_cycle(level, parts, num_parts, bounds, state, first=cycle == 0)
    return parts


def _cut(level: _Level, parts: Indices) -> int:
    from torchkiln.graphs.sampling._cluster_kernels import cut_weight

    return int(cut_weight(*level.edges, parts))


def _build(edges: Indices, num_nodes: int) -> _Level:
    from torchkiln.graphs.sampling._cluster_kernels import merge_edges

    ends_a, ends_b = np.concatenate([edges, edges[::-1]], axis=1)
    ones = np.ones(len(ends_a), dtype=np.int64)
    offsets, targets, weights = merge_edges(
        num_nodes, np.ascontiguousarray(ends_a), np.ascontiguousarray(ends_b), ones
    )
    return _Level(offsets, targets, weights, sizes=np.ones(num_nodes, dtype=np.int64))


def _run_cycle(
    finest: _Level, parts: Indices, num_parts: int, bounds: _Bounds, state: Any, *, first: bool
) -> Indices:
    """Contract, partition what is left (or keep the parts), and refine on the way back."""
    from torchkiln.graphs.sampling import _cluster_kernels as kernels

    levels, maps = [finest], []
    # Clusters much smaller than a part, so that parts of equal size can be made of them.
    limit = max(1, bounds.most // 6)
    while len(levels[-1].sizes) > _COARSE_NODES * num_parts:
        level = levels[-1]
        cluster, count = kernels.cluster_nodes(*level.edges, level.sizes, parts, limit, state)
        if count > _LEAST_SHRINK * len(level.sizes):
            break
        levels.append(_contract(level, cluster, count))
        maps.append(cluster)
        parts = _project(parts, cluster, count)
    if first:
        parts = kernels.grow_parts(*levels[-1].edges, levels[-1].sizes, num_parts, state)
    for depth in range(len(levels) - 1, -1, -1):
        level = levels[depth]
        if depth < len(maps):
            parts = parts[maps[depth]]
        _improve(level, parts, num_parts, bounds, state)
    return parts


def _contract(level: _Level, cluster: Indices, count: int) -> _Level:
    from torchkiln.graphs.sampling._cluster_kernels import merge_edges

    owners = np.repeat(cluster, np.diff(level.offsets))
    offsets, targets, weights = merge_edges(count, owners, cluster[level.targets], level.weights)
    sizes = np.bincount(cluster, weights=level.sizes, minlength=count).astype(np.int64)
    return _Level(offsets, targets, weights, sizes)


def _project(parts: Indices, cluster: Indices, count: int) -> Indices:
    """Return the part of each cluster, whose nodes all share it."""
    coarse = np.empty(count, dtype=np.int64)
    coarse[cluster] = parts
    return coarse


def _improve(level: _Level, parts: Indices, num_parts: int, bounds: _Bounds, state: Any) -> None:
    from torchkiln.graphs.sampling import _cluster_kernels as kernels

    loads = kernels.sum_loads(parts, level.sizes, num_parts)
    arguments = (*level.edges, level.sizes, parts, loads, *bounds, state)
    kernels.balance(*arguments)
    # On large graphs, what a pass over everything gains must be worth its time.
    worthwhile = len(level.targets) // _EDGES_PER_GAIN
    for _ in range(_PASSES):
        if kernels.refine(*arguments) <= worthwhile:
            break
    kernels.balance(*arguments)
