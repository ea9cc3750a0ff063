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
from torchkiln.graphs._levels import Level, no_fixed_size
from torchkiln.graphs._spec import BatchSpec, PadValues
from torchkiln.graphs.batches._pad import pad_value as pad_value
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
)

_ALIGNMENT = 64  # a cache line, and the widest vector load
_MASKS = ("graph_mask", "node_mask", "edge_mask")
# The order in which PyG's `Data` takes its arguments.
_FIRST = ("x", "edge_index", "edge_attr", "y", "pos", "time")


@dataclass(frozen=True, slots=True)
class Slot:
    """One tensor of the batch: `at` counts elements of its dtype from the start of the memory."""

    place: PlaceKey
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
    """An `edge_index`, with the slots of `ptr` of the nodes at both ends."""

    column: str
    slot: Slot
    axis: str
    source_ptr: Slot
    target_ptr: Slot


@dataclass(frozen=True, slots=True)
class Text:
    """An attribute that becomes a list."""

    place: PlaceKey
    column: str
    attribute: Attribute


@dataclass(frozen=True, slots=True)
class Layout:
    """All slots of a batch, and what has to be done to fill them.

    Attributes:
        num_packs: Mini-batches in the batch.
        num_graphs: Graphs in a mini-batch.
        limits: Size of a mini-batch on every axis.
        slots: Tensors in the order that the batch shows them.
        batch: By node axis, the slots of `batch` and `ptr`.
        edge_ptr: By edge axis, where the edges of each graph begin; not part of the batch.
        masks: By axis ("graphs" for the graphs themselves), the slot of the mask.
        numbers: Python numbers, which become one tensor.
        num_bytes: Size of the memory.
    """

    num_packs: int
    num_graphs: int
    limits: dict[str, int]
    slots: tuple[Slot, ...]
    batch: dict[str, tuple[Slot, Slot]]
    edge_ptr: dict[str, Slot]
    masks: dict[str, Slot]
    copies: tuple[Copy, ...]
    edges: tuple[Edges, ...]
    numbers: tuple[tuple[str, Slot], ...]
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
    for place in schema.places:
        if isinstance(place.key, str):
            limits[node_axis(place.key)] = _entry("num_nodes", nodes, place.key)
        elif isinstance(place.key, tuple):
            limits[edge_axis(place.key)] = _entry("num_edges", edges, place.key)
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
        self.slots: list[Slot] = []
        self.batch: dict[str, tuple[Slot, Slot]] = {}
        self.masks: dict[str, Slot] = {}
        self.copies: list[Copy] = []
        self.index_slots: list[tuple[str, Slot]] = []
        self.numbers: list[tuple[str, Slot]] = []
        self.texts: list[Text] = []

    def plan(self) -> Layout:
        for place in self.schema.places:
            first = len(self.slots)
            for attribute in place.attributes:
                if attribute.is_stored and attribute.key not in self.exclude_keys:
                    self._place_attribute(place, attribute)
            axis = node_axis(place.key)
            if axis in self.limits:
                self.batch[axis] = (
                    self._slot(place.key, "batch", torch.int64, (self.limits[axis],)),
                    self._slot(place.key, "ptr", torch.int64, (self.num_graphs + 1,)),
                )
            if self.with_masks:
                self._place_masks(place)
            if self.combined:
                self.slots[first:] = sorted(self.slots[first:], key=self._combined_order)
        edge_ptr = {
            axis: self._reserve(None, "", torch.int64, (self.num_graphs + 1,))
            for axis in self.schema.edge_axes
            if not self.combined
        }
        return Layout(
            num_packs=self.num_packs,
            num_graphs=self.num_graphs,
            limits=self.limits,
            slots=tuple(self.slots),
            batch=self.batch,
            edge_ptr=edge_ptr,
            masks=self.masks,
            copies=tuple(self.copies),
            edges=tuple(self._edges(column, slot) for column, slot in self.index_slots),
            numbers=tuple(self.numbers),
            texts=tuple(self.texts),
            num_bytes=self.num_bytes,
        )

    def _place_attribute(self, place: Place, attribute: Attribute) -> None:
        if self.with_masks and attribute.key in _MASKS:
            raise GraphError(
                f"the graphs have an attribute {attribute.key!r}, which is the name of a mask that "
                f"tells filler; rename it, pass exclude_keys=[{attribute.key!r}] or masks=False"
            )
        column = column_name(place.key, attribute.key)
        if attribute.kind in TEXTS:
            if not self.combined:
                self.texts.append(Text(place.key, column, attribute))
            return
        if attribute.axis is not None and attribute.axis not in self.limits:
            raise no_fixed_size(place.key, attribute.key)
        if attribute.kind in NUMBERS:
            # As torch.tensor(list) would choose.
            dtype = torch.get_default_dtype() if attribute.kind == "float" else None
            dtype = dtype or attribute.torch_dtype
            slot = self._slot(place.key, attribute.key, dtype, (self.num_graphs,))
            self.numbers.append((column, slot))
        elif attribute.is_edge_index:
            assert attribute.axis is not None
            shape = (2, self.limits[attribute.axis])
            slot = self._slot(place.key, attribute.key, attribute.torch_dtype, shape)
            self.index_slots.append((column, slot))
        else:
            self._place_copy(place, attribute, column)

    def _place_copy(self, place: Place, attribute: Attribute, column: str) -> None:
        dtype, item = attribute.torch_dtype, attribute.item_shape
        if attribute.axis is None:
            level = Level.GRAPH
            shape = (self.num_graphs * item[0], *item[1:]) if item else (self.num_graphs,)
        else:
            level = Level.NODE if attribute.axis.startswith("nodes") else Level.EDGE
            shape = (self.limits[attribute.axis], *item)
        value = pad_value(attribute.key, level, self.pad, dtype)
        filling = torch.full((math.prod(item),), value, dtype=dtype).view(torch.uint8).numpy()
        slot = self._slot(place.key, attribute.key, dtype, shape)
        if filling.size:
            at = slot.at * dtype.itemsize
            self.copies.append(Copy(column, attribute.axis, at, filling.size, filling))

    def _place_masks(self, place: Place) -> None:
        wanted = []
        if place.key is None:
            wanted.append(("graph_mask", "graphs", self.num_graphs))
        for key, axis in (("node_mask", node_axis(place.key)), ("edge_mask", _edges_of(place))):
            if axis in self.limits:
                wanted.append((key, axis, self.limits[axis]))
        for key, axis, size in wanted:
            self.masks[axis] = self._slot(place.key, key, torch.bool, (size,))

    def _combined_order(self, slot: Slot) -> tuple[int, str]:
        first = _FIRST.index(slot.key) if slot.key in _FIRST else len(_FIRST)
        return (first, "" if self.schema.is_hetero else slot.key)

    def _edges(self, column: str, slot: Slot) -> Edges:
        ends = (slot.place[0], slot.place[2]) if isinstance(slot.place, tuple) else (None, None)
        source, target = (self.batch[node_axis(end)][1] for end in ends)
        return Edges(column, slot, edge_axis(slot.place), source, target)

    def _slot(self, place: PlaceKey, key: str, dtype: torch.dtype, shape: tuple[int, ...]) -> Slot:
        slot = self._reserve(place, key, dtype, shape)
        self.slots.append(slot)
        return slot

    def _reserve(
        self, place: PlaceKey, key: str, dtype: torch.dtype, shape: tuple[int, ...]
    ) -> Slot:
        shape = (self.num_packs * shape[0], *shape[1:])
        slot = Slot(place, key, dtype, shape, self.num_bytes // dtype.itemsize)
        size = math.prod(shape) * dtype.itemsize
        self.num_bytes += -(-size // _ALIGNMENT) * _ALIGNMENT
        return slot


def _edges_of(place: Place) -> str:
    return "" if isinstance(place.key, str) else edge_axis(place.key)
