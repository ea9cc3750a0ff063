"""Graphs, one after the other, become columns: the bytes of each attribute, and their sizes."""

from __future__ import annotations

import json
import warnings
from array import array
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, final

import numpy as np
import torch
from torch import Tensor

from torchkiln.core import StoreError
from torchkiln.graphs._levels import StorageKey, check_given, is_hetero
from torchkiln.graphs.store._axes import Counts, assign_axes
from torchkiln.graphs.store._schema import (
    NUMBERS,
    TEXTS,
    Attribute,
    Storage,
    StoreSchema,
    carrier_of,
    column_name,
    describe_storage,
    dtype_name,
    edge_axis,
    node_axis,
)

_LISTS = "leave it out with exclude_keys=[{key!r}], or batch lists of graphs with pad_batch"
_INDEX_DTYPES = (torch.int64, torch.int32)


class Sink(Protocol):
    """Where the bytes of one row of a column go."""

    def write(self, data: bytes, /) -> Any: ...


OpenSink = Callable[[str], Sink]


@dataclass(slots=True)
class _Column:
    """One attribute while graphs are coming in."""

    storage: StorageKey
    key: str
    kind: str
    dtype: str
    shape: tuple[int, ...]
    sinks: list[Sink]
    lengths: array[int] = field(default_factory=lambda: array("q"))

    @property
    def where(self) -> str:
        return f"attribute {self.key!r}{describe_storage(self.storage)}"


@dataclass(frozen=True, slots=True)
class Flat:
    """What graphs were flattened into; the bytes are in the sinks, a column's rows in order."""

    schema: StoreSchema
    offsets: dict[str, Counts]
    sinks: dict[str, list[Sink]]


@final
class Flattener:
    """Takes graphs one by one; the first one says which attributes all of them have."""

    def __init__(
        self, open_sink: OpenSink, exclude_keys: frozenset[str], levels: Mapping[str, str]
    ) -> None:
        self._open_sink = open_sink
        self._levels = levels
        self._exclude_keys = exclude_keys
        self._graph_class: Any = None
        self._is_hetero = False
        self._storages: dict[StorageKey, dict[str, _Column]] = {}
        self._counts: dict[str, array[int]] = {}
        self._num_graphs = 0

    def add(self, graph: Any) -> None:
        """Append one graph.

        Raises:
            StoreError: It has something that a store cannot keep, or not what the first one has.
        """
        if self._graph_class is None:
            self._begin(graph)
        index = self._num_graphs
        kind: Any = type(graph)
        if kind is not self._graph_class:
            raise StoreError(
                f"graph {index} is a {kind.__name__}, graph 0 a {self._graph_class.__name__}; use "
                "one class for all graphs"
            )
        stores: dict[StorageKey, Any] = {_key_of(store): store for store in graph.stores}
        if stores.keys() != self._storages.keys():
            raise StoreError(
                f"graph {index} has the types {_names(stores)}, graph 0 has "
                f"{_names(self._storages)}; give every graph all types, empty where it has none"
            )
        for key, store in stores.items():
            self._add_store(index, key, store)
        self._num_graphs += 1

    def finish(self) -> Flat:
        """Return the schema, now that all graphs are known."""
        if not self._num_graphs:
            raise StoreError("there is no graph to store: the dataset is empty")
        axes = {name: np.frombuffer(c, dtype=np.int64) for name, c in self._counts.items()}
        lengths = {
            column_name(storage, key): np.frombuffer(column.lengths, dtype=np.int64)
            for storage, columns in self._storages.items()
            for key, column in columns.items()
            if column.kind != "num_nodes"
        }
        drafts = [
            Storage(
                storage,
                tuple(
                    Attribute(column.key, column.kind, None, column.dtype, column.shape)
                    for column in columns.values()
                ),
            )
            for storage, columns in self._storages.items()
        ]
        schema, offsets = assign_axes(self._is_hetero, drafts, axes, lengths, self._levels)
        sinks = {
            column_name(storage, key): column.sinks
            for storage, columns in self._storages.items()
            for key, column in columns.items()
            if column.kind != "num_nodes"
        }
        return Flat(schema, offsets, sinks)

    def _begin(self, graph: Any) -> None:
        check_graph_class(graph)
        check_given(self._levels, graph.keys())
        self._graph_class = type(graph)
        self._is_hetero = is_hetero(graph)
        for storage, store in ((_key_of(store), store) for store in graph.stores):
            attributes = describe_store(graph, storage, store, self._exclude_keys)
            columns = self._storages[storage] = {}
            for attribute in attributes:
                # num_nodes is the axis itself and has no column of its own.
                rows = 2 if attribute.is_edge_index else int(attribute.is_stored)
                name = column_name(storage, attribute.key)
                columns[attribute.key] = _Column(
                    storage,
                    attribute.key,
                    attribute.kind,
                    attribute.dtype,
                    attribute.shape,
                    [self._open_sink(f"{name}.{row}") for row in range(rows)],
                )
            for axis in axes_of(graph, storage):
                self._counts[axis] = array("q")

    def _add_store(self, index: int, storage: StorageKey, store: Any) -> None:
        columns = self._storages[storage]
        if storage is None and self._is_hetero:
            pass  # what concerns the whole graph has neither nodes nor edges
        elif isinstance(storage, tuple):
            self._counts[edge_axis(storage)].append(store.num_edges)
        else:
            self._counts[node_axis(storage)].append(store.num_nodes)
            if storage is None:
                self._counts[edge_axis(storage)].append(store.num_edges)
        keys = [key for key in store if key not in self._exclude_keys]
        if columns.keys() != set(keys):
            odd = sorted(columns.keys() ^ set(keys))
            raise StoreError(
                f"graph {index} and graph 0 do not have the same attributes"
                f"{describe_storage(storage)}: {odd} are in one of them only; set them in all "
                f"graphs, or leave them out with exclude_keys={odd}"
            )
        for key in keys:
            if key != "num_nodes":
                self._append(index, columns[key], store[key])

    def _append(self, index: int, column: _Column, value: Any) -> None:
        kind = kind_of(value)
        if kind != column.kind:
            raise StoreError(
                f"{column.where} is {kind or type(value).__name__} in graph {index} and "
                f"{column.kind} in graph 0; make it the same in all graphs"
            )
        if kind in TEXTS:
            data = encode_text(value, kind)
            column.lengths.append(len(data))
            column.sinks[0].write(data)
            return
        tensor = to_plain_tensor(value, column.dtype)
        if dtype_name(tensor.dtype) != column.dtype or not _same_shape(tensor, column):
            raise StoreError(
                f"{column.where} is {dtype_name(tensor.dtype)} {list(tensor.shape)} in graph "
                f"{index}, but {column.dtype} {list(column.shape)} (-1: any size) in graph 0; "
                + _LISTS.format(key=column.key)
            )
        array_ = tensor.view(carrier_of(tensor.dtype)).numpy()
        if len(column.sinks) == 1:
            column.sinks[0].write(array_.tobytes())
            column.lengths.append(tensor.shape[0] if tensor.dim() else 1)
        else:
            for sink, row in zip(column.sinks, array_, strict=True):
                sink.write(row.tobytes())
            column.lengths.append(tensor.shape[-1])


def _same_shape(tensor: Tensor, column: _Column) -> bool:
    if tensor.dim() != len(column.shape):
        return False
    return all(want in (-1, got) for want, got in zip(column.shape, tensor.shape, strict=True))


def _key_of(store: Any) -> StorageKey:
    key: StorageKey = store._key
    return key


def _names(storages: Any) -> list[Any]:
    return [key for key in storages if key is not None]


def check_graph_class(graph: Any) -> None:
    from torch_geometric.data import Data, HeteroData

    if type(graph) not in (Data, HeteroData):
        raise StoreError(
            f"a store keeps plain Data and HeteroData, got {type(graph).__name__}; convert it "
            "(Data.from_dict(graph.to_dict())), or batch lists of graphs with pad_batch"
        )


def axes_of(graph: Any, storage: StorageKey) -> tuple[str, ...]:
    """Return the axes that a storage of `graph` has."""
    if is_hetero(graph):
        if storage is None:
            return ()
        return (node_axis(storage),) if isinstance(storage, str) else (edge_axis(storage),)
    return (node_axis(None), edge_axis(None))


def describe_store(
    graph: Any, storage: StorageKey, store: Any, exclude_keys: frozenset[str]
) -> Iterator[Attribute]:
    """Yield the attributes of one storage, with sizes that follow an axis still unassigned.

    Raises:
        StoreError: An attribute cannot be kept, or would be batched in a way of its own.
    """
    if not (is_hetero(graph) and storage is None) and not isinstance(storage, tuple):
        _check_num_nodes(storage, store)
    for key, value in store.items():
        if key in exclude_keys:
            continue
        where = f"attribute {key!r}{describe_storage(storage)}"
        if key == "num_nodes":
            yield Attribute(key, "num_nodes", None, "", ())
            continue
        kind = kind_of(value)
        if kind is None or key in ("ptr", "num_edges"):
            raise StoreError(
                f"{where} of type {type(value).__name__} cannot be kept in a store; make it a "
                "dense tensor, a number, a string, or a list of plain values, or "
                + _LISTS.format(key=key)
            )
        if kind in TEXTS:
            yield Attribute(key, kind, None, "", (-1,))
            continue
        _check_batching(graph, storage, store, key, value, where)
        tensor = to_plain_tensor(value, NUMBERS.get(kind, ""))
        shape: tuple[int, ...] = tuple(tensor.shape)
        if key == "edge_index":
            shape = (2, -1)
        elif shape:
            shape = (-1, *shape[1:])
        yield Attribute(key, kind, None, dtype_name(tensor.dtype), shape)


def _check_num_nodes(storage: StorageKey, store: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            known = isinstance(store.num_nodes, int)
        except UserWarning:
            known = False
    if not known:
        raise StoreError(
            f"the number of nodes{describe_storage(storage)} cannot be told from the attributes "
            f"{list(store.keys())}; set num_nodes on every graph"
        )


def _check_batching(
    graph: Any, storage: StorageKey, store: Any, key: str, value: Any, where: str
) -> None:
    """Refuse what PyG would concatenate or count up in another way than ours."""
    is_index = key == "edge_index"
    cat_dim = graph.__cat_dim__(key, value, store)
    increment = graph.__inc__(key, value, store)
    if is_index:
        tensor = isinstance(value, Tensor)
        usual = tensor and value.dim() == 2 and value.shape[0] == 2 and value.dtype in _INDEX_DTYPES
        if isinstance(storage, tuple):
            missing = {storage[0], storage[2]} - set(graph.node_types)
            if missing:
                raise StoreError(
                    f"{where} connects {sorted(missing)}, which the graph has no nodes of; "
                    "set their num_nodes or x"
                )
        usual = usual and cat_dim in (-1, 1)
    else:
        usual = cat_dim == 0 and isinstance(increment, int) and increment == 0
    if not usual:
        shape = list(value.shape) if isinstance(value, Tensor) else type(value).__name__
        raise StoreError(
            f"{where} ({shape}) is concatenated along {cat_dim} and counted up by "
            f"{increment if isinstance(increment, int) else 'several numbers'} when batched, "
            "which a store does not do (PyG treats names with 'index', 'batch' or 'face' in this "
            "way): rename it, " + _LISTS.format(key=key)
        )


def kind_of(value: Any) -> str | None:
    """Return how a value is kept, or None if it cannot be."""
    if type(value) is Tensor or type(value) is torch.nn.Parameter:
        return None if value.layout is not torch.strided or value.is_nested else "tensor"
    if isinstance(value, bool):
        return "bool"
    if type(value) in (int, float):
        return type(value).__name__
    if type(value) is str:
        return "text"
    # A dict would be batched key by key.
    try:
        return "json" if type(value) is list and _is_plain(value) else None
    except RecursionError:
        return None  # nested too deeply for JSON


def _is_plain(value: Any) -> bool:
    """Tell whether JSON gives back exactly `value`."""
    if value is None or type(value) in (bool, int, float, str):
        return True
    if type(value) is list:
        return all(_is_plain(entry) for entry in value)
    if type(value) is dict:
        return all(type(key) is str and _is_plain(entry) for key, entry in value.items())
    return False


def encode_text(value: Any, kind: str) -> bytes:
    text = value if kind == "text" else json.dumps(value, ensure_ascii=False)
    # Strings from file names may hold lone surrogates; they come back as they were.
    encoded: bytes = text.encode("utf-8", "surrogatepass")
    return encoded


def to_plain_tensor(value: Any, dtype: str) -> Tensor:
    """Return a contiguous tensor on the CPU; Python numbers get their wide dtype."""
    if isinstance(value, Tensor):
        return value.detach().cpu().resolve_conj().resolve_neg().contiguous()
    try:
        return torch.tensor(value, dtype=getattr(torch, dtype))
    except (OverflowError, RuntimeError, ValueError) as error:
        raise StoreError(
            f"{value} does not fit into {dtype}; store it as a string or a float"
        ) from error
