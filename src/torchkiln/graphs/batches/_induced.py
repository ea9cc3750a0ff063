"""Cutting a graph that is too large for any batch: some of its nodes, and the edges among them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from torchkiln.graphs._levels import StorageKey
from torchkiln.graphs.store._axes import Counts
from torchkiln.graphs.store._columns import Columns
from torchkiln.graphs.store._schema import (
    StoreSchema,
    column_name,
    edge_axis,
    node_axis,
)

# (seed, epoch): with the graph's index, it decides what is cut off.
TrimKey = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Cut:
    """What is left of a graph.

    Attributes:
        kept: By axis, which nodes and edges stay, numbered within the graph.
        ends: By edge type, the edges that stay, in the new numbers of their nodes; [2, edges].
    """

    kept: dict[str, Counts]
    ends: dict[StorageKey, Counts]


def columns_to_cut(schema: StoreSchema, limits: Mapping[str, int]) -> list[str]:
    """Return the columns that `cut_graph` reads, whether or not batches hold them."""
    return [
        name
        for name, attribute in schema.stored()
        if attribute.is_edge_index and attribute.axis in limits
    ]


def cut_graph(columns: Columns, graph: int, limits: Mapping[str, int], key: TrimKey) -> Cut:
    """Return an induced sub-graph that leaves one slot of each axis free.

    What stays is random, but the same for the same key and graph, and keeps its order. The graph's
    `columns_to_cut` must be verified.
    """
    sizes = {axis: _size(columns, axis, graph) for axis in limits}
    capacity = {axis: max(limit - 1, 0) for axis, limit in limits.items()}
    random = np.random.default_rng([*key, graph])
    kept = {axis: _choose(random, sizes[axis], capacity[axis]) for axis in columns.schema.node_axes}
    ends: dict[StorageKey, Counts] = {}
    for storage in columns.schema.storages:
        axis = edge_axis(storage.key) if not isinstance(storage.key, str) else ""
        if axis not in limits:
            continue
        stays = np.arange(sizes[axis])
        if any(attribute.is_edge_index for attribute in storage.attributes):
            renumbered = _renumber(columns, storage.key, graph, kept)
            stays = np.flatnonzero((renumbered >= 0).all(axis=0))
            stays = stays[_choose(random, len(stays), capacity[axis])]
            ends[storage.key] = renumbered[:, stays]
        else:
            stays = _choose(random, len(stays), capacity[axis])
        kept[axis] = stays
    return Cut(kept, ends)


def _size(columns: Columns, axis: str, graph: int) -> int:
    offsets = columns.offsets[axis]
    return int(offsets[graph + 1] - offsets[graph])


def _choose(random: np.random.Generator, size: int, limit: int) -> Counts:
    if size <= limit:
        return np.arange(size)
    return np.sort(random.choice(size, limit, replace=False))


def _renumber(columns: Columns, storage: StorageKey, graph: int, kept: dict[str, Counts]) -> Counts:
    """Return the ends of all edges in the new numbers; -1 for nodes that are gone."""
    offsets = columns.offsets[edge_axis(storage)]
    index = columns.arrays[column_name(storage, "edge_index")]
    rows = index[:, offsets[graph] : offsets[graph + 1]]
    types = (storage[0], storage[2]) if isinstance(storage, tuple) else (None, None)
    renumbered = []
    for row, kind in zip(rows, types, strict=True):
        axis = node_axis(kind)
        numbers = np.full(_size(columns, axis, graph), -1, dtype=np.int64)
        numbers[kept[axis]] = np.arange(len(kept[axis]))
        renumbered.append(numbers[row])
    return np.stack(renumbered)
