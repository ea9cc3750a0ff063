"""What the size of each attribute follows, decided over all graphs."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from torchkiln.graphs.store._schema import (
    NUMBERS,
    TEXTS,
    Attribute,
    Place,
    PlaceKey,
    StoreSchema,
    column_name,
    edge_axis,
    node_axis,
    own_axis,
)

Counts = NDArray[np.int64]


def assign_axes(
    has_types: bool,
    drafts: list[Place],
    axes: dict[str, Counts],
    lengths: dict[str, Counts],
) -> tuple[StoreSchema, dict[str, Counts]]:
    """Decide for each attribute what its size follows, as PyG does but over all graphs.

    Args:
        has_types: Whether the graphs are heterogeneous.
        drafts: Places whose attributes have no axis yet.
        axes: Nodes and edges of every graph.
        lengths: By column, the size in every graph along the dimension that is concatenated.

    Returns:
        The schema, and the offsets of every axis.
    """
    counts = dict(axes)
    places = []
    for draft in drafts:
        attributes = []
        for attribute in draft.attributes:
            if attribute.kind == "num_nodes":
                attributes.append(attribute)
                continue
            own = lengths[column_name(draft.key, attribute.key)]
            candidates = _candidate_axes(has_types, draft.key, attribute.key)
            axis = next((axis for axis in candidates if np.array_equal(axes[axis], own)), None)
            if attribute.kind in TEXTS or (attribute.shape and axis is None and np.ptp(own)):
                axis = own_axis(draft.key, attribute.key)
                counts[axis] = own
            attributes.append(_with_axis(attribute, axis, int(own[0])))
        places.append(Place(draft.key, tuple(attributes)))
    offsets = {axis: _to_offsets(sizes) for axis, sizes in counts.items()}
    return StoreSchema(has_types, tuple(places)), offsets


def _candidate_axes(has_types: bool, place: PlaceKey, key: str) -> tuple[str, ...]:
    if isinstance(place, tuple):
        return (edge_axis(place),)
    if has_types:
        return () if place is None else (node_axis(place),)
    # As many nodes as edges in every graph: the name decides, as in PyG.
    both = (node_axis(None), edge_axis(None))
    return both[::-1] if "edge" in key else both


def _with_axis(attribute: Attribute, axis: str | None, length: int) -> Attribute:
    shape = attribute.shape
    if not shape or attribute.kind in NUMBERS:
        axis = None
    if axis is None:
        shape = tuple(length if size == -1 else size for size in shape)
    return Attribute(attribute.key, attribute.kind, axis, attribute.dtype, shape)


def _to_offsets(sizes: Counts) -> Counts:
    offsets = np.zeros(len(sizes) + 1, dtype=np.int64)
    np.cumsum(sizes, out=offsets[1:])
    return offsets
