"""What a store knows about its graphs: types, attributes, and which of them grow with what.

An *axis* is anything that graphs have a number of: nodes and edges (by type, if there are types),
and the own length of attributes that are neither, such as a text. Everything that follows an axis
shares its offsets.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, final

import torch

from torchkiln.core import StoreError
from torchkiln.graphs._levels import StorageKey

# Python values that PyG turns into a tensor when it batches, and the dtype that they are kept in.
NUMBERS = {"int": "int64", "float": "float64", "bool": "bool"}
# Kept as UTF-8, one piece of bytes a graph.
TEXTS = ("text", "json")


@final
@dataclass(frozen=True, slots=True)
class Attribute:
    """One attribute of all graphs.

    Attributes:
        key: Its name.
        kind: "tensor"; "int", "float" or "bool" (Python numbers); "text" or "json" (lists of
            plain values); "num_nodes" (set explicitly, its values are those of the node axis).
        axis: What its size follows; None if it is the same in every graph.
        dtype: Name of the torch dtype; empty for texts and `num_nodes`.
        shape: Of one graph's tensor, with -1 in the dimension that follows the axis.
    """

    key: str
    kind: str
    axis: str | None
    dtype: str
    shape: tuple[int, ...]

    @property
    def torch_dtype(self) -> torch.dtype:
        dtype: torch.dtype = getattr(torch, self.dtype)
        return dtype

    @property
    def is_edge_index(self) -> bool:
        return self.key == "edge_index"

    @property
    def is_stored(self) -> bool:
        return self.kind != "num_nodes"

    @property
    def item_shape(self) -> tuple[int, ...]:
        """Shape of what one node, edge or graph has; columns are `[length, *item_shape]`."""
        if self.axis is None:
            return self.shape
        return tuple(size for size in self.shape if size != -1)

    def to_json(self) -> dict[str, Any]:
        return {
            "key": self.key,
            "kind": self.kind,
            "axis": self.axis,
            "dtype": self.dtype,
            "shape": list(self.shape),
        }


@final
@dataclass(frozen=True, slots=True)
class Storage:
    """The attributes that PyG keeps in one storage: of the graph, a node type or an edge type."""

    key: StorageKey
    attributes: tuple[Attribute, ...]

    @property
    def has_edges(self) -> bool:
        return any(a.axis is not None and a.axis.startswith("edges") for a in self.attributes)


@final
@dataclass(frozen=True, slots=True)
class StoreSchema:
    """All storages in PyG's order; the first is that of the whole graph."""

    is_hetero: bool
    storages: tuple[Storage, ...]

    @property
    def node_axes(self) -> tuple[str, ...]:
        if not self.is_hetero:
            return ("nodes",)
        return tuple(
            node_axis(storage.key) for storage in self.storages if isinstance(storage.key, str)
        )

    @property
    def edge_axes(self) -> tuple[str, ...]:
        if not self.is_hetero:
            return ("edges",)
        return tuple(
            edge_axis(storage.key) for storage in self.storages if isinstance(storage.key, tuple)
        )

    def stored(self) -> Iterator[tuple[str, Attribute]]:
        """Yield every attribute that has a column, with the column's name."""
        for storage in self.storages:
            for attribute in storage.attributes:
                if attribute.is_stored:
                    yield column_name(storage.key, attribute.key), attribute

    def to_json(self) -> dict[str, Any]:
        return {
            "is_hetero": self.is_hetero,
            "places": [
                {"key": storage.key, "attributes": [a.to_json() for a in storage.attributes]}
                for storage in self.storages
            ],
        }

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> StoreSchema:
        storages = []
        for storage in values["places"]:
            key = tuple(storage["key"]) if isinstance(storage["key"], list) else storage["key"]
            attributes = (
                Attribute(**{**attribute, "shape": tuple(attribute["shape"])})
                for attribute in storage["attributes"]
            )
            storages.append(Storage(key, tuple(attributes)))
        return cls(bool(values["is_hetero"]), tuple(storages))


def node_axis(key: StorageKey) -> str:
    return "nodes" if key is None else f"nodes:{key}"


def edge_axis(key: StorageKey) -> str:
    return "edges" if key is None else f"edges:{','.join(key)}"


def own_axis(key: StorageKey, name: str) -> str:
    return f"own:{column_name(key, name)}"


def column_name(key: StorageKey, name: str) -> str:
    """Return the name of an attribute's column, unique in its store."""
    if key is None:
        return name
    return f"{key if isinstance(key, str) else ','.join(key)}/{name}"


def describe_storage(key: StorageKey) -> str:
    return "" if key is None else f" of {key!r}"


def check_exclude_keys(exclude_keys: Any) -> frozenset[str]:
    if isinstance(exclude_keys, str):
        raise StoreError(f"exclude_keys must be several names; pass [{exclude_keys!r}]")
    return frozenset(exclude_keys)


# torch dtypes that NumPy lacks, and those that hold their bits.
_CARRIERS: dict[torch.dtype, torch.dtype] = {torch.bfloat16: torch.int16} | {
    dtype: torch.uint8
    for name in ("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz")
    if (dtype := getattr(torch, name, None)) is not None
}


def carrier_of(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype under which NumPy can hold the bits of `dtype`."""
    return _CARRIERS.get(dtype, dtype)


def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
