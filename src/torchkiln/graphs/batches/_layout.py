"""Where everything of a (combined) batch lies in one piece of memory.

Shapes never change, so this is known before the first graph: a batch is one allocation, can be sent
to another process as one tensor, and becomes a PyG `Batch` of views there.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from torchkiln.core import OptionsError
from torchkiln.graphs._errors import GraphError
from torchkiln.graphs._levels import Level, StorageKey, no_fixed_size
from torchkiln.graphs._spec import BatchSpec, PadValues
from torchkiln.graphs.batches._pad import pad_value as pad_value
from torchkiln.graphs.store._schema import (
    NUMBERS,
    TEXTS,
    Attribute,
    Storage,
    StoreSchema,
    column_name,
    edge_axis,
    node_axis,
)

_ALIGNMENT = 64  # a cache line, and the widest vector load
_MASKS = ("graph_mask", "node_mask", "edge_mask")
# The order in which PyG's `Data` takes its arguments.
_FIRST = ("x", "edge_index", "edge_attr", "y", "pos", "time")


@dataclass(frozen=True, slots=True)
class PlannedTensor:
    """One tensor of the batch: `at` counts elements of its dtype from the start of the memory."""

    storage: StorageKey
    key: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    at: int

    @property
    def stride(self) -> tuple[int, ...]:
        return tuple(math.prod(self.shape[dim + 1 :]) for dim in range(len(self.shape)))


@dataclass(frozen=True, slots=True)
class Copy:
    """An attribute that is gathered as bytes: `item_bytes` for each node, edge or graph."""

    column: str
    axis: str | None
    at: int
    item_bytes: int
    filling: NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Edges:
    """An `edge_index`, with `ptr` of the nodes at both ends."""

    column: str
    tensor: PlannedTensor
    axis: str
    source_ptr: PlannedTensor
    target_ptr: PlannedTensor


@dataclass(frozen=True, slots=True)
class Text:
    """An attribute that becomes a list."""

    storage: StorageKey
    column: str
    attribute: Attribute


@dataclass(frozen=True, slots=True)
class Layout:
    """All tensors of a batch, and what has to be done to fill them.

    Attributes:
        num_packs: Mini-batches in the batch.
        num_graphs: Graphs in a mini-batch.
        limits: Size of a mini-batch on every axis.
        tensors: In the order that the batch shows them.
        batch: By node axis, `batch` and `ptr`.
        edge_ptr: By edge axis, where the edges of each graph begin; not part of the batch.
        masks: By axis ("graphs" for the graphs themselves).
        numbers: Python numbers, which become one tensor.
        num_bytes: Size of the memory.
    """

    num_packs: int
    num_graphs: int
    limits: dict[str, int]
    tensors: tuple[PlannedTensor, ...]
    batch: dict[str, tuple[PlannedTensor, PlannedTensor]]
    edge_ptr: dict[str, PlannedTensor]
    masks: dict[str, PlannedTensor]
    copies: tuple[Copy, ...]
    edges: tuple[Edges, ...]
    numbers: tuple[tuple[str, PlannedTensor], ...]
    texts: tuple[Text, ...]
    num_bytes: int


def read_limits(schema: StoreSchema, spec: BatchSpec) -> dict[str, int]:
    """Return the sizes of a mini-batch by axis.

    Raises:
        OptionsError: The spec is for another kind of graphs, or lacks a type.
    """
    nodes, edges = spec.num_nodes, spec.num_edges
    if schema.is_hetero != spec.is_hetero:
        kind, want = ("HeteroData", "dicts by type") if schema.is_hetero else ("Data", "numbers")
        raise OptionsError(
            f"the store holds {kind}, whose spec needs {want}; got num_nodes={nodes!r}, "
            f"num_edges={edges!r}"
        )
    if not isinstance(nodes, Mapping) or not isinstance(edges, Mapping):
        assert isinstance(nodes, int)
        assert isinstance(edges, int)
        return {node_axis(None): nodes, edge_axis(None): edges}
    limits = {}
    for storage in schema.storages:
        if isinstance(storage.key, str):
            limits[node_axis(storage.key)] = _entry("num_nodes", nodes, storage.key)
        elif isinstance(storage.key, tuple):
            limits[edge_axis(storage.key)] = _entry("num_edges", edges, storage.key)
    return limits


def _entry(name: str, sizes: Mapping[Any, int], key: Any) -> int:
    if key not in sizes:
        raise OptionsError(f"{name} has no entry for the type {key!r}; add one")
    return sizes[key]


def plan_layout(
    schema: StoreSchema,
    spec: BatchSpec,
    *,
    num_packs: int,
    combined: bool,
    masks: bool,
    pad: PadValues,
    exclude_keys: frozenset[str],
) -> Layout:
    """Lay out one mini-batch as PyG would show it, or `num_packs` of them as a combined batch.

    Raises:
        GraphError: An attribute has no fixed size, or the name of a mask.
        OptionsError: The spec does not fit the store, or a pad value its dtype.
    """
    return _Planner(schema, spec, num_packs, combined, masks, pad, exclude_keys).plan()


class _Planner:
    def __init__(
        self,
        schema: StoreSchema,
        spec: BatchSpec,
        num_packs: int,
        combined: bool,
        masks: bool,
        pad: PadValues,
        exclude_keys: frozenset[str],
    ) -> None:
        self.schema = schema
        self.limits = read_limits(schema, spec)
        self.num_graphs = spec.num_graphs
        self.num_packs = num_packs
        self.combined = combined
        self.with_masks = masks
        self.pad = pad
        self.exclude_keys = exclude_keys
        self.num_bytes = 0
        self.tensors: list[PlannedTensor] = []
        self.batch: dict[str, tuple[PlannedTensor, PlannedTensor]] = {}
        self.masks: dict[str, PlannedTensor] = {}
        self.copies: list[Copy] = []
        self.edge_indices: list[tuple[str, PlannedTensor]] = []
        self.numbers: list[tuple[str, PlannedTensor]] = []
        self.texts: list[Text] = []

    def plan(self) -> Layout:
        for storage in self.schema.storages:
            first = len(self.tensors)
            for attribute in storage.attributes:
                if attribute.is_stored and attribute.key not in self.exclude_keys:
                    self._place_attribute(storage, attribute)
            axis = node_axis(storage.key)
            if axis in self.limits:
                self.batch[axis] = (
                    self._plan(storage.key, "batch", torch.int64, (self.limits[axis],)),
                    self._plan(storage.key, "ptr", torch.int64, (self.num_graphs + 1,)),
                )
            if self.with_masks:
                self._place_masks(storage)
            if self.combined:
                self.tensors[first:] = sorted(self.tensors[first:], key=self._combined_order)
        edge_ptr = {
            axis: self._reserve(None, "", torch.int64, (self.num_graphs + 1,))
            for axis in self.schema.edge_axes
            if not self.combined
        }
        return Layout(
            num_packs=self.num_packs,
            num_graphs=self.num_graphs,
            limits=self.limits,
            tensors=tuple(self.tensors),
            batch=self.batch,
            edge_ptr=edge_ptr,
            masks=self.masks,
            copies=tuple(self.copies),
            edges=tuple(self._edges(column, tensor) for column, tensor in self.edge_indices),
            numbers=tuple(self.numbers),
            texts=tuple(self.texts),
            num_bytes=self.num_bytes,
        )

    def _place_attribute(self, storage: Storage, attribute: Attribute) -> None:
        if self.with_masks and attribute.key in _MASKS:
            raise GraphError(
                f"the graphs have an attribute {attribute.key!r}, which is the name of a mask that "
                f"tells filler; rename it, pass exclude_keys=[{attribute.key!r}] or masks=False"
            )
        column = column_name(storage.key, attribute.key)
        if attribute.kind in TEXTS:
            if not self.combined:
                self.texts.append(Text(storage.key, column, attribute))
            return
        if attribute.axis is not None and attribute.axis not in self.limits:
            raise no_fixed_size(storage.key, attribute.key)
        if attribute.kind in NUMBERS:
            # As torch.tensor(list) would choose.
            dtype = torch.get_default_dtype() if attribute.kind == "float" else None
            dtype = dtype or attribute.torch_dtype
            tensor = self._plan(storage.key, attribute.key, dtype, (self.num_graphs,))
            self.numbers.append((column, tensor))
        elif attribute.is_edge_index:
            assert attribute.axis is not None
            shape = (2, self.limits[attribute.axis])
            tensor = self._plan(storage.key, attribute.key, attribute.torch_dtype, shape)
            self.edge_indices.append((column, tensor))
        else:
            self._place_copy(storage, attribute, column)

    def _place_copy(self, storage: Storage, attribute: Attribute, column: str) -> None:
        dtype, item = attribute.torch_dtype, attribute.item_shape
        if attribute.axis is None:
            level = Level.GRAPH
            shape = (self.num_graphs * item[0], *item[1:]) if item else (self.num_graphs,)
        else:
            level = Level.NODE if attribute.axis.startswith("nodes") else Level.EDGE
            shape = (self.limits[attribute.axis], *item)
        value = pad_value(attribute.key, level, self.pad, dtype)
        filling = torch.full((math.prod(item),), value, dtype=dtype).view(torch.uint8).numpy()
        tensor = self._plan(storage.key, attribute.key, dtype, shape)
        if filling.size:
            at = tensor.at * dtype.itemsize
            self.copies.append(Copy(column, attribute.axis, at, filling.size, filling))

    def _place_masks(self, storage: Storage) -> None:
        wanted = []
        if storage.key is None:
            wanted.append(("graph_mask", "graphs", self.num_graphs))
        for key, axis in (("node_mask", node_axis(storage.key)), ("edge_mask", _edges_of(storage))):
            if axis in self.limits:
                wanted.append((key, axis, self.limits[axis]))
        for key, axis, size in wanted:
            self.masks[axis] = self._plan(storage.key, key, torch.bool, (size,))

    def _combined_order(self, tensor: PlannedTensor) -> tuple[int, str]:
        first = _FIRST.index(tensor.key) if tensor.key in _FIRST else len(_FIRST)
        return (first, "" if self.schema.is_hetero else tensor.key)

    def _edges(self, column: str, tensor: PlannedTensor) -> Edges:
        kind = tensor.storage
        ends = (kind[0], kind[2]) if isinstance(kind, tuple) else (None, None)
        source, target = (self.batch[node_axis(end)][1] for end in ends)
        return Edges(column, tensor, edge_axis(kind), source, target)

    def _plan(
        self, storage: StorageKey, key: str, dtype: torch.dtype, shape: tuple[int, ...]
    ) -> PlannedTensor:
        tensor = self._reserve(storage, key, dtype, shape)
        self.tensors.append(tensor)
        return tensor

    def _reserve(
        self, storage: StorageKey, key: str, dtype: torch.dtype, shape: tuple[int, ...]
    ) -> PlannedTensor:
        shape = (self.num_packs * shape[0], *shape[1:])
        tensor = PlannedTensor(storage, key, dtype, shape, self.num_bytes // dtype.itemsize)
        size = math.prod(shape) * dtype.itemsize
        self.num_bytes += -(-size // _ALIGNMENT) * _ALIGNMENT
        return tensor


def _edges_of(storage: Storage) -> str:
    return "" if isinstance(storage.key, str) else edge_axis(storage.key)
