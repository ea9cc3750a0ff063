"""The kernels of _cfconv.cpp, called with tensors."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any, NamedTuple

from torch import Tensor

from torchkiln.core import ArgumentError
from torchkiln.ops._kernels import num_threads

_MAX_SHOWN = 20


class _Graph(ctypes.Structure):
    """`struct Graph` of _cfconv.cpp."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("first", "second", "batch", "ways")),
        *((name, ctypes.c_int64) for name in ("num_edges", "num_nodes", "width")),
        *((name, ctypes.c_int64) for name in ("reverse", "threads")),
    ]


class _Table(ctypes.Structure):
    """`struct Table` of _cfconv.cpp."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("distances", "scale")),
        ("num_knots", ctypes.c_int64),
        ("spacing", ctypes.c_double),
        ("order", ctypes.c_int64),
    ]


class Edges(NamedTuple):
    """Who sends to whom: as the arguments of `cfconv`; `reverse` turns all messages round."""

    edge_index: Tensor
    batch: Tensor
    ways: Tensor | None
    reverse: bool


class Places(NamedTuple):
    """Where edges look into a table, which derivative of it they take, and times what."""

    distances: Tensor
    scale: Tensor | None
    num_knots: int
    spacing: float
    order: int


def call_kernel(
    kernel: Any, out: Tensor, tensors: Sequence[Tensor], edges: Edges, places: Places | None = None
) -> Tensor:
    """Return `out`, filled from `tensors`; the first of them has one row a node.

    Raises:
        ArgumentError: if edges leave their molecule, the nodes, or the order of molecules.
    """
    # Held until the kernel is done: it sees addresses only.
    tensors = [tensor.contiguous() for tensor in tensors]
    index, batch = edges.edge_index.contiguous(), edges.batch.contiguous()
    ways = None if edges.ways is None else edges.ways.contiguous()
    num_edges, (num_nodes, width) = index.shape[1], tensors[0].shape
    graph = _Graph(
        index.data_ptr(),
        index.data_ptr() + num_edges * index.element_size(),
        batch.data_ptr(),
        None if ways is None else ways.data_ptr(),
        num_edges,
        num_nodes,
        width,
        edges.reverse,
        num_threads(num_edges * width),
    )
    structures: list[Any] = [ctypes.byref(graph)]
    if places is not None:
        distances = places.distances.contiguous()
        scale = None if places.scale is None else places.scale.contiguous()
        pointers = (distances.data_ptr(), None if scale is None else scale.data_ptr())
        table = _Table(*pointers, places.num_knots, places.spacing, places.order)
        structures.append(ctypes.byref(table))
    if not kernel(*structures, *(ctypes.c_void_p(t.data_ptr()) for t in (*tensors, out))):
        check_edges(edges.edge_index, edges.batch)
        raise AssertionError("a kernel refused edges that look right")
    return out


def check_edges(edge_index: Tensor, batch: Tensor) -> None:
    """Check what the kernels check while they run.

    Raises:
        ArgumentError: as `call_kernel`.
    """
    if bool((batch[1:] < batch[:-1]).any()) or bool((batch < 0).any()):
        raise ArgumentError(
            f"batch must be ascending from 0, as nodes are grouped by molecule, got "
            f"{batch[:_MAX_SHOWN].tolist()}{'...' if len(batch) > _MAX_SHOWN else ''}; sort nodes"
        )
    outside = ((edge_index < 0) | (edge_index >= len(batch))).any(0)
    molecules = batch[edge_index.clamp(0, max(len(batch) - 1, 0))] if len(batch) else edge_index
    first, second = molecules
    wrong = outside | (first != second)
    wrong[1:] |= first[1:] < first[:-1]
    if bool(wrong.any()):
        raise ArgumentError(_complaint(int(wrong.int().argmax()), edge_index, batch))


def _complaint(edge: int, edge_index: Tensor, batch: Tensor) -> str:
    first, second = edge_index[:, edge].tolist()
    if not (0 <= first < len(batch) and 0 <= second < len(batch)):
        return (
            f"edge {edge} joins nodes {first} and {second}, but there are {len(batch)} nodes; "
            f"edge_index must count nodes of the batch from 0"
        )
    molecules = int(batch[first]), int(batch[second])
    if molecules[0] != molecules[1]:
        return (
            f"edge {edge} joins node {first} of molecule {molecules[0]} to node {second} of "
            f"molecule {molecules[1]}; edges must stay within a molecule: check `batch`, or add "
            f"the node offsets of the batch to edge_index"
        )
    return (
        f"edge {edge} belongs to molecule {molecules[0]}, but stands after edges of a later one; "
        f"edges must be grouped by molecule, in the order of `batch`: sort them with "
        f"edge_index[:, batch[edge_index[0]].argsort(stable=True)] (and what belongs to them)"
    )
