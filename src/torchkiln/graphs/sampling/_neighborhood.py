"""One sampled neighbourhood: from seed nodes, hop by hop against the direction of the edges.

Knows arrays only. A homogeneous graph is one with a single node type and a single relation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

Indices = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Relation:
    """The edges of one type, by target node: CSC, sorted by time within a target if there is any.

    `times` and `weights` belong to the edges; a node's time is that of the edges that leave it.
    """

    source: str
    target: str
    offsets: Indices
    sources: Indices
    times: NDArray[Any] | None = None
    weights: NDArray[np.float64] | None = None


@dataclass(frozen=True, slots=True)
class Rules:
    """How neighbours are drawn."""

    replace: bool = False
    disjoint: bool = False
    latest: bool = False  # the last ones in time instead of random ones
    induced: bool = False  # all edges between the nodes instead of those that were drawn


@dataclass(slots=True)
class Neighborhood:
    """What was sampled; nodes by type, edges by relation. Seeds come first among their type.

    `rows` and `columns` are numbers of nodes in `nodes`, `edges` positions in the relation.
    `trees` says which seed a node belongs to, if each seed has a neighbourhood of its own.
    """

    nodes: dict[str, Indices]
    trees: dict[str, Indices] | None
    rows: dict[Any, Indices] = field(default_factory=dict)
    columns: dict[Any, Indices] = field(default_factory=dict)
    edges: dict[Any, Indices] = field(default_factory=dict)
    nodes_per_hop: dict[str, list[int]] = field(default_factory=dict)
    edges_per_hop: dict[Any, list[int]] = field(default_factory=dict)


def sample_neighborhood(
    relations: Mapping[Any, Relation],
    num_nodes: Mapping[str, int],
    num_neighbors: Mapping[Any, Sequence[int]],
    seeds: Mapping[str, Indices],
    rules: Rules,
    *,
    stream: int,
    seed_times: Mapping[str, NDArray[Any]] | None = None,
) -> Neighborhood:
    """Return what `num_hops` rounds of drawing reach from `seeds`.

    Args:
        relations: All edges, by any key.
        num_nodes: Of the whole graph, by node type.
        num_neighbors: How many neighbours each node gets in each hop, for each relation; -1 is all.
        seeds: Where to begin; one that comes twice keeps both places.
        rules: How neighbours are drawn.
        stream: Number from 0 to 2**64 - 1 that decides everything random.
        seed_times: Only edges up to the time of their seed count; needs `rules.disjoint`.
    """
    state = np.array([stream], dtype=np.uint64)
    tables = _plant(num_nodes, seeds, rules.disjoint)
    tree_times = None
    if seed_times is not None:
        tree_times = np.concatenate([seed_times[kind] for kind in seeds])
    drawn: dict[Any, list[tuple[Indices, Indices, Indices]]] = {key: [] for key in relations}
    begins = dict.fromkeys(num_nodes, 0)
    per_hop = {kind: [len(table.nodes)] for kind, table in tables.items()}
    for hop in range(max((len(counts) for counts in num_neighbors.values()), default=0)):
        ends = {kind: len(table.nodes) for kind, table in tables.items()}
        for key, relation in relations.items():
            target = tables[relation.target]
            begin, end = begins[relation.target], ends[relation.target]
            limits = None if tree_times is None else tree_times[target.trees[begin:end]]
            edges, owners = _draw(
                relation, target.nodes[begin:end], num_neighbors[key][hop], rules, limits, state
            )
            trees = target.trees[begin:end][owners] if rules.disjoint else None
            rows = tables[relation.source].number(relation.sources[edges], trees)
            drawn[key].append((rows, owners + begin, edges))
        begins = ends
        for kind, table in tables.items():
            per_hop[kind].append(len(table.nodes) - ends[kind])
    result = Neighborhood(
        nodes={kind: table.nodes for kind, table in tables.items()},
        trees={kind: table.trees for kind, table in tables.items()} if rules.disjoint else None,
        nodes_per_hop=per_hop,
    )
    for key, relation in relations.items():
        parts = drawn[key]
        if rules.induced:
            parts = [_all_between(relation, tables[relation.source], tables[relation.target])]
        else:
            result.edges_per_hop[key] = [len(edges) for _, _, edges in parts]
        columns = zip(*parts, strict=True) if parts else ([np.empty(0, np.int64)],) * 3
        result.rows[key], result.columns[key], result.edges[key] = map(np.concatenate, columns)
    return result


@final
class _Table:
    """The nodes of one type that were reached so far, and their numbers."""

    def __init__(self, num_nodes: int) -> None:
        self._num_nodes = num_nodes
        self._slots = _empty_slots(16)
        self.nodes: Indices = np.empty(0, np.int64)
        self.trees: Indices = np.empty(0, np.int64)

    def plant(self, seeds: Indices, trees: Indices | None) -> None:
        from torchkiln.graphs.sampling._neighbor_kernels import insert_seeds

        self._make_room(len(seeds))
        insert_seeds(self._slots, self._keys(seeds, trees))
        self.nodes = seeds
        if trees is not None:
            self.trees = trees

    def number(self, nodes: Indices, trees: Indices | None) -> Indices:
        """Return the numbers of `nodes`, giving new ones to those that were not reached before."""
        from torchkiln.graphs.sampling._neighbor_kernels import insert

        self._make_room(len(nodes))
        numbers, fresh = insert(self._slots, self._keys(nodes, trees), len(self.nodes))
        if len(fresh):
            self.nodes = np.concatenate([self.nodes, fresh % self._num_nodes])
            if trees is not None:
                self.trees = np.concatenate([self.trees, fresh // self._num_nodes])
        return np.asarray(numbers)

    def find(self, nodes: Indices, trees: Indices | None) -> Indices:
        """Return the numbers of `nodes`, -1 for those that were not reached."""
        from torchkiln.graphs.sampling._neighbor_kernels import find

        return np.asarray(find(self._slots, self._keys(nodes, trees)))

    def _keys(self, nodes: Indices, trees: Indices | None) -> Indices:
        # One node may be reached from several seeds, and is then several nodes.
        return nodes if trees is None else trees * self._num_nodes + nodes

    def _make_room(self, num_more: int) -> None:
        """Keep the table at most half full, so that searching stays short."""
        from torchkiln.graphs.sampling._neighbor_kernels import move

        needed = 2 * (len(self.nodes) + num_more)
        if needed > len(self._slots):
            larger = _empty_slots(1 << (needed - 1).bit_length())
            move(self._slots, larger)
            self._slots = larger


def _empty_slots(size: int) -> Indices:
    return np.full((size, 2), -1, dtype=np.int64)


def _plant(
    num_nodes: Mapping[str, int], seeds: Mapping[str, Indices], disjoint: bool
) -> dict[str, _Table]:
    tables = {kind: _Table(size) for kind, size in num_nodes.items()}
    first_tree = 0
    for kind, nodes in seeds.items():
        trees = np.arange(first_tree, first_tree + len(nodes), dtype=np.int64)
        tables[kind].plant(nodes, trees if disjoint else None)
        first_tree += len(nodes)
    return tables


def _draw(
    relation: Relation,
    frontier: Indices,
    count: int,
    rules: Rules,
    limits: NDArray[Any] | None,
    state: NDArray[np.uint64],
) -> tuple[Indices, Indices]:
    """Return positions of edges into the frontier, and which of its nodes each one enters."""
    from torchkiln.graphs.sampling import _neighbor_kernels as kernels

    starts, ends = relation.offsets[frontier], relation.offsets[frontier + 1]
    if limits is not None and relation.times is not None:
        ends = kernels.clip_by_time(starts, ends, relation.times, limits)
    drawn: tuple[Indices, Indices]
    if count < 0:
        drawn = kernels.take_all(starts, ends)
    elif rules.latest and relation.times is not None:
        drawn = kernels.take_all(np.maximum(starts, ends - count), ends)
    elif relation.weights is not None:
        drawn = kernels.draw_weighted(starts, ends, count, relation.weights, rules.replace, state)
    elif rules.replace:
        drawn = kernels.draw_repeated(starts, ends, count, state)
    else:
        drawn = kernels.draw_distinct(starts, ends, count, state)
    return drawn


def _all_between(
    relation: Relation, source: _Table, target: _Table
) -> tuple[Indices, Indices, Indices]:
    from torchkiln.graphs.sampling._neighbor_kernels import take_all

    edges, owners = take_all(relation.offsets[target.nodes], relation.offsets[target.nodes + 1])
    trees = target.trees[owners] if len(target.trees) else None
    rows = source.find(relation.sources[edges], trees)
    inside = rows >= 0
    return rows[inside], owners[inside], edges[inside]
