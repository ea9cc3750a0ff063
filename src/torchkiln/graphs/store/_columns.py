"""Where a store's numbers come from: graphs one by one, or a PyG dataset that is flat already."""

from __future__ import annotations

import io
import math
import operator
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from torchkiln.core import StoreError
from torchkiln.core._progress import progress_bar
from torchkiln.data._user_code import read_elements
from torchkiln.graphs._levels import StorageKey, check_given, is_hetero
from torchkiln.graphs.store._axes import Counts, assign_axes
from torchkiln.graphs.store._blocks import BlockGuard, Piece, Reads
from torchkiln.graphs.store._flatten import (
    Flattener,
    OpenSink,
    axes_of,
    check_graph_class,
    describe_store,
    encode_text,
    kind_of,
)
from torchkiln.graphs.store._schema import (
    TEXTS,
    Attribute,
    Storage,
    StoreSchema,
    carrier_of,
    column_name,
    edge_axis,
    node_axis,
)

Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class MappedColumns:
    """The files that columns are mapped from.

    Attributes:
        guard: Verifies their blocks.
        files: By column.
        data_begin: Where the numbers begin in each file.
    """

    guard: BlockGuard
    files: dict[str, Path]
    data_begin: int

    def reads(self, columns: Columns, names: Iterable[str], selected: Counts | None) -> Reads:
        attributes = dict(columns.schema.stored())
        pieces = []
        for name in names:
            attribute, array = attributes[name], columns.arrays[name]
            offsets = None if attribute.axis is None else columns.offsets[attribute.axis]
            # An edge_index is two rows, each with the edges of all graphs.
            rows = list(array) if attribute.is_edge_index else [array]
            first_block = self.guard.first_block(self.files[name])
            for number, row in enumerate(rows):
                item_bytes = row.dtype.itemsize * math.prod(row.shape[1:])
                begin = self.data_begin + number * row.nbytes
                pieces.append(Piece(offsets, len(row), item_bytes, begin, first_block))
        return Reads(self.guard, pieces, selected)


@dataclass(frozen=True, slots=True)
class Columns:
    """All graphs as flat arrays: `arrays` by column name, `offsets` by axis.

    Arrays that are mapped from files are to be read only after their blocks were verified: see
    `reads` and `verify_all`. Offsets were verified when the files were opened.
    """

    schema: StoreSchema
    offsets: dict[str, Counts]
    arrays: dict[str, Array]
    mapped: MappedColumns | None = None

    @property
    def num_graphs(self) -> int:
        return len(self.offsets[self.schema.node_axes[0]]) - 1

    def reads(self, names: Iterable[str], selected: Counts | None) -> Reads | None:
        """Return what verifies graphs before they are read; None if there is no need to.

        Args:
            names: The columns that are read.
            selected: The graphs that are read, sooner or later; None: all.
        """
        return None if self.mapped is None else self.mapped.reads(self, names, selected)

    def verify_all(self) -> None:
        """Compare all columns with their checksums.

        Raises:
            StoreError: One of them is damaged.
        """
        if self.mapped is not None:
            self.mapped.guard.verify_all()

    def check_edges(self) -> None:
        """Raise `StoreError` for an edge to a node that its graph does not have."""
        from torchkiln.graphs.store._store_kernels import find_stray_edge

        for storage in self.schema.storages:
            ends = storage.key if isinstance(storage.key, tuple) else (None, "", None)
            if not any(attribute.is_edge_index for attribute in storage.attributes):
                continue
            index = self.arrays[column_name(storage.key, "edge_index")]
            edges = self.offsets[edge_axis(storage.key)]
            for row, end in ((0, ends[0]), (1, ends[2])):
                nodes = np.diff(self.offsets[node_axis(end)])
                graph = int(find_stray_edge(index[row], edges, nodes))
                if graph >= 0:
                    found = index[row, edges[graph] : edges[graph + 1]]
                    raise StoreError(
                        f"graph {graph} has an edge to node {_stray(found, nodes[graph])} but only "
                        f"{nodes[graph]} nodes{f' of {end!r}' if end else ''}; correct its "
                        "edge_index, or set num_nodes if it has isolated nodes"
                    )


def _stray(nodes: Array, num_nodes: int) -> int:
    return int(nodes[(nodes < 0) | (nodes >= num_nodes)][0])


def column_shape(attribute: Attribute, length: int) -> tuple[int, ...]:
    """Return the shape of a column that holds `length` nodes, edges, bytes or graphs."""
    return (2, length) if attribute.is_edge_index else (length, *attribute.item_shape)


def column_dtype(attribute: Attribute) -> np.dtype[Any]:
    """Return NumPy's dtype of a column."""
    if attribute.kind in TEXTS:
        return np.dtype(np.uint8)
    return torch.empty(0, dtype=carrier_of(attribute.torch_dtype)).numpy().dtype


def column_length(attribute: Attribute, offsets: dict[str, Counts], num_graphs: int) -> int:
    return num_graphs if attribute.axis is None else int(offsets[attribute.axis][-1])


def read_only(array: Array) -> Array:
    """Return a view that nobody can write through; Numba then sees one type wherever it is."""
    view = array.view()
    view.flags.writeable = False
    return view


def feed(flattener: Flattener, graphs: Iterable[Any], *, progress: bool) -> None:
    """Hand all graphs over, with a progress bar."""
    total = operator.length_hint(graphs) or None
    bar = progress_bar(total=total, desc="Storing graphs", unit=" graphs", show=progress)
    with bar:
        for graph in read_elements(graphs):
            flattener.add(graph)
            bar.update()


def flatten_in_memory(
    graphs: Iterable[Any],
    exclude_keys: frozenset[str],
    levels: Mapping[str, str],
    *,
    progress: bool,
) -> Columns:
    """Return columns of any iterable of graphs."""
    flattener = Flattener(_memory_sinks(), exclude_keys, levels)
    feed(flattener, graphs, progress=progress)
    flat = flattener.finish()
    arrays = {}
    for name, attribute in flat.schema.stored():
        rows: list[Any] = flat.sinks[name]
        data = rows[0].getbuffer() if len(rows) == 1 else b"".join(row.getbuffer() for row in rows)
        length = -1 if 0 not in attribute.item_shape else _own_length(attribute, flat.offsets)
        shape = column_shape(attribute, length)
        flat_array = np.frombuffer(data, dtype=column_dtype(attribute))
        arrays[name] = read_only(flat_array.reshape(shape))
    return Columns(flat.schema, flat.offsets, arrays)


def _own_length(attribute: Attribute, offsets: dict[str, Counts]) -> int:
    return column_length(attribute, offsets, len(next(iter(offsets.values()))) - 1)


def _memory_sinks() -> OpenSink:
    return lambda _name: io.BytesIO()


def flat_columns(
    dataset: Any, exclude_keys: frozenset[str], levels: Mapping[str, str]
) -> Columns | None:
    """Return the columns that a PyG `InMemoryDataset` already is, without a copy.

    None if it is something else: a subclass with a `get` of its own, one with a transform, or with
    attributes that it does not keep flat. Covers all its graphs, also those that a subset hides.
    """
    from torch_geometric.data import InMemoryDataset

    if (
        not isinstance(dataset, InMemoryDataset)
        or dataset.transform is not None
        or type(dataset).get is not InMemoryDataset.get
        or dataset.slices is None
    ):
        return None
    sample = dataset.get(0)
    check_graph_class(sample)
    check_given(levels, sample.keys())
    counts: dict[str, Counts] = {}
    lengths: dict[str, Counts] = {}
    arrays: dict[str, Array] = {}
    drafts = []
    for store, flat in zip(sample.stores, dataset._data.stores, strict=True):
        storage: StorageKey = store._key
        slices = dataset.slices if storage is None else dataset.slices.get(storage, {})
        attributes = tuple(describe_store(sample, storage, store, exclude_keys))
        drafts.append(Storage(storage, attributes))
        for attribute in attributes:
            if attribute.kind == "num_nodes":
                continue
            name = column_name(storage, attribute.key)
            column = _flat_column(attribute, flat[attribute.key], slices.get(attribute.key))
            if column is None:
                return None
            arrays[name], lengths[name] = column
        for axis in axes_of(sample, storage):
            found = _count(axis, store, flat, lengths, storage)
            if found is None:
                return None
            counts[axis] = found
    schema, offsets = assign_axes(is_hetero(sample), drafts, counts, lengths, levels)
    num_graphs = len(next(iter(lengths.values())))
    for name, attribute in schema.stored():
        length = column_length(attribute, offsets, num_graphs)
        arrays[name] = read_only(arrays[name].reshape(column_shape(attribute, length)))
    return Columns(schema, offsets, arrays)


def _flat_column(attribute: Attribute, value: Any, slices: Any) -> tuple[Array, Counts] | None:
    if isinstance(value, list):
        if attribute.kind not in TEXTS or any(kind_of(v) != attribute.kind for v in value):
            return None
        encoded = [encode_text(entry, attribute.kind) for entry in value]
        data = np.frombuffer(b"".join(encoded), dtype=np.uint8)
        return data, np.array([len(entry) for entry in encoded], dtype=np.int64)
    if type(value) is not Tensor or not isinstance(slices, Tensor) or slices.dim() != 1:
        return None
    carrier = carrier_of(value.dtype)
    array = value.detach().cpu().contiguous().view(carrier).numpy()
    lengths = np.diff(slices.numpy())
    # Slices that start late or end early would shift every graph.
    total = value.shape[1] if attribute.is_edge_index else value.shape[0]
    if int(slices[0]) != 0 or int(slices[-1]) != total:
        return None
    return array, lengths.astype(np.int64, copy=False)


def _count(
    axis: str, store: Any, flat: Any, lengths: dict[str, Counts], storage: StorageKey
) -> Counts | None:
    """Return how many nodes or edges every graph has, from the attribute that PyG would ask."""
    if axis.startswith("nodes"):
        if "num_nodes" in store:
            numbers: Any = flat.__dict__.get("_num_nodes")
            return None if numbers is None else np.array(numbers, dtype=np.int64)
        known: tuple[str, ...] = ("x", "feat", "pos", "batch", "node_type", "n_id")
        word = "node"
    else:
        known = ("edge_index", "edge_weight", "edge_attr", "edge_type", "e_id")
        word = "edge"
    keys = [key for key in store if column_name(storage, key) in lengths]
    asked = [key for key in keys if key in known] + [key for key in keys if word in key]
    if asked:
        return lengths[column_name(storage, asked[0])]
    if word == "edge" and lengths and not any(word in key for key in store):
        return np.zeros_like(next(iter(lengths.values())))
    return None
