"""What the size of each attribute follows, decided over all graphs."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from torchkiln.graphs._levels import Level, StorageKey, classify
from torchkiln.graphs.store._schema import (
    TEXTS,
    Attribute,
    Storage,
    StoreSchema,
    column_name,
    edge_axis,
    node_axis,
    own_axis,
)

Counts = NDArray[np.int64]


def assign_axes(
    has_types: bool,
    drafts: list[Storage],
    axes: dict[str, Counts],
    lengths: dict[str, Counts],
    levels: Mapping[str, str],
) -> tuple[StoreSchema, dict[str, Counts]]:
    """Decide for each attribute what its size follows, by `classify` over all graphs.

    Args:
        has_types: Whether the graphs are heterogeneous.
        drafts: Places whose attributes have no axis yet.
        axes: Nodes and edges of every graph.
        lengths: By column, the size in every graph along the dimension that is concatenated.
        levels: "node", "edge" or "graph" by attribute, where shapes cannot tell.

    Returns:
        The schema, and the offsets of every axis.

    Raises:
        GraphError: Nothing tells what an attribute describes, or `levels` says something wrong.
    """
    counts = dict(axes)
    storages = []
    for draft in drafts:
        attributes = []
        for attribute in draft.attributes:
            if attribute.kind == "num_nodes":
                attributes.append(attribute)
                continue
            own = lengths[column_name(draft.key, attribute.key)]
            axis = _axis_of(has_types, draft.key, attribute, own, axes, levels)
            if attribute.kind in TEXTS or (attribute.shape and axis is None and np.ptp(own)):
                axis = own_axis(draft.key, attribute.key)
                counts[axis] = own
            attributes.append(_with_axis(attribute, axis, int(own[0])))
        storages.append(Storage(draft.key, tuple(attributes)))
    offsets = {axis: _to_offsets(sizes) for axis, sizes in counts.items()}
    return StoreSchema(has_types, tuple(storages)), offsets


def _axis_of(
    has_types: bool,
    storage: StorageKey,
    attribute: Attribute,
    lengths: Counts,
    axes: dict[str, Counts],
    levels: Mapping[str, str],
) -> str | None:
    """Return the axis of nodes or edges that a tensor follows, if it follows one."""
    if attribute.kind != "tensor" or not attribute.shape:
        return None
    follows = {}
    if not isinstance(storage, tuple) and not (has_types and storage is None):
        follows[Level.NODE] = node_axis(storage)
    if isinstance(storage, tuple) or not has_types:
        follows[Level.EDGE] = edge_axis(storage)
    level = classify(
        attribute.key,
        lengths,
        nodes=axes.get(follows.get(Level.NODE, "")),
        edges=axes.get(follows.get(Level.EDGE, "")),
        given=levels.get(attribute.key),
    )
    return follows.get(level)


def _with_axis(attribute: Attribute, axis: str | None, length: int) -> Attribute:
    shape = attribute.shape
    if axis is None:
        shape = tuple(length if size == -1 else size for size in shape)
    return Attribute(attribute.key, attribute.kind, axis, attribute.dtype, shape)


def _to_offsets(sizes: Counts) -> Counts:
    offsets = np.zeros(len(sizes) + 1, dtype=np.int64)
    np.cumsum(sizes, out=offsets[1:])
    return offsets
