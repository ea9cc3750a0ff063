"""Columns of a store made of flat arrays, for datasets that never were `Data` objects."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from torchkiln.core import StoreError
from torchkiln.graphs.store._axes import Counts
from torchkiln.graphs.store._columns import Array, Columns, read_only
from torchkiln.graphs.store._schema import (
    Attribute,
    Storage,
    StoreSchema,
    dtype_name,
    edge_axis,
    node_axis,
)

# From these PyG tells how many nodes a graph has; without one of them it would guess.
_TELL_NODES = ("x", "feat", "pos", "batch", "node_type", "n_id")


def columns_from_arrays(
    node_offsets: Any,
    edge_offsets: Any,
    node: Mapping[str, Any],
    edge: Mapping[str, Any],
    graph: Mapping[str, Any],
) -> Columns:
    """Check arrays and offsets, and return them as columns without a copy."""
    axes = {node_axis(None): node_offsets, edge_axis(None): edge_offsets}
    offsets = {axis: _check_offsets(axis, given) for axis, given in axes.items()}
    nodes, edges = (offsets[axis] for axis in axes)
    if len(nodes) != len(edges):
        raise StoreError(
            f"node_offsets are those of {len(nodes) - 1} graphs and edge_offsets of "
            f"{len(edges) - 1}; both need one entry a graph and a last one"
        )
    attributes: list[Attribute] = []
    arrays: dict[str, Array] = {}
    groups = (
        ("node", node, node_axis(None), int(nodes[-1])),
        ("edge", edge, edge_axis(None), int(edges[-1])),
        ("graph", graph, None, len(nodes) - 1),
    )
    for kind, given, axis, length in groups:
        for name, value in given.items():
            if name in arrays:
                raise StoreError(f"{name!r} is given twice; an attribute has one place")
            array = np.ascontiguousarray(value)
            _check_length(kind, name, array, length)
            arrays[name] = read_only(array)
            attributes.append(_describe(name, array, axis))
    if not any(name in _TELL_NODES or "node" in name for name in node):
        attributes.append(Attribute("num_nodes", "num_nodes", None, "", ()))
    schema = StoreSchema(False, (Storage(None, tuple(attributes)),))
    columns = Columns(schema, offsets, arrays)
    columns.check_edges()
    return columns


def _check_offsets(axis: str, given: Any) -> Counts:
    offsets = np.ascontiguousarray(given)
    if offsets.dtype.kind not in "iu" or offsets.ndim != 1 or len(offsets) < 2:
        raise StoreError(
            f"offsets of {axis} must be whole numbers [num_graphs + 1] for at least one graph, "
            f"got {offsets.dtype} {list(offsets.shape)}"
        )
    offsets = offsets.astype(np.int64, copy=False)
    if offsets[0] != 0 or (np.diff(offsets) < 0).any():
        raise StoreError(
            f"offsets of {axis} must begin with 0 and never fall, got "
            f"{np.array2string(offsets, threshold=6)}"
        )
    return offsets


def _check_length(kind: str, name: str, array: Array, length: int) -> None:
    if name == "edge_index":
        fits = kind == "edge" and array.shape == (2, length) and array.dtype.kind in "iu"
        want = f"an edge attribute, whole numbers [2, {length}]"
    else:
        fits = array.ndim > 0 and len(array) == length
        want = f"[{length}, ...], one entry for each {kind}"
    if not fits:
        raise StoreError(
            f"{kind} attribute {name!r} is {array.dtype} {list(array.shape)}; it must be {want}"
        )


def _describe(name: str, array: Array, axis: str | None) -> Attribute:
    try:
        dtype = torch.from_numpy(np.empty(0, dtype=array.dtype)).dtype
    except TypeError as error:
        raise StoreError(f"{name!r} is {array.dtype}, which torch has no dtype for") from error
    item = array.shape[1:]
    if name == "edge_index":
        shape: tuple[int, ...] = (2, -1)
    else:
        shape = item if axis is None else (-1, *item)
    return Attribute(name, "tensor", axis, dtype_name(dtype), shape)
