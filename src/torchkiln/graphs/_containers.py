"""PyG's `Data`, `HeteroData` and batches as arguments and results of programs.

A program sees the tensors of a graph and, as constants, its sizes (`num_nodes`, `num_edges`,
`num_graphs`), so that forward can use them as static numbers. Importing this module registers
`GraphContainer`; `torchkiln.data` imports it as soon as PyG is loaded.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

from torch import Tensor
from torch_geometric.data import Batch, Data, HeteroData
from torch_geometric.data.data import BaseData

from torchkiln.data import flatten, register_container
from torchkiln.graphs._errors import GraphError
from torchkiln.graphs._levels import StorageKey, is_hetero, stores_of

# The order in which PyG's constructor sets them, which is the order that `repr` shows.
_FIRST = ("x", "edge_index", "edge_attr", "y", "pos", "time")
_SIZES = ("num_nodes", "num_edges")
# What a batch remembers of the graphs it was made of; other values come in, so it would be wrong.
_MEMORIES = ("_slice_dict", "_inc_dict", "_num_nodes")


class GraphContainer:
    """Takes the tensors out of PyG's objects, and puts others in.

    Homogeneous graphs keep tensors and sizes only: other attributes (names, for example) differ
    from batch to batch, and a combined batch could not hold them. Heterogeneous graphs also keep
    attributes that are not tensors, as they were in the first call.
    """

    def tensors(self, value: Any) -> list[Tensor]:
        """Return the tensors of a graph, by sorted name; those of typed stores in their order."""
        return [tensor for _, _, tensor in _entries(value)]

    def rebuild(self, original: Any, tensors: Iterator[Tensor]) -> Any:
        """Return a graph like `original` with other tensors; its sizes stay those of `original`."""
        given: dict[StorageKey, dict[str, Tensor]] = {}
        for kind, name, _ in _entries(original):
            given.setdefault(kind, {})[name] = next(tensors)
        sizes = _sizes(original)
        result = copy.copy(original)
        for kind, store in stores_of(result):
            constants = {k: v for k, v in store.items() if _is_kept(original, v)}
            for name in list(store):
                del store[name]
            new = given.get(kind, {})
            order = [name for name in _FIRST if name in new] + [n for n in new if n not in _FIRST]
            for name in order:
                store[name] = new[name]
            for name, constant in {**constants, **sizes.get(kind, {})}.items():
                store[name] = constant
            for memory in _MEMORIES:
                store.__dict__.pop(memory, None)
        num_graphs = _num_graphs(original)
        if num_graphs is not None:
            result._num_graphs = num_graphs
        return result

    def names(self, value: Any) -> list[str]:
        """Return the name of each tensor."""
        return [
            name if kind is None else f"{kind if isinstance(kind, str) else '__'.join(kind)}.{name}"
            for kind, name, _ in _entries(value)
        ]

    def constants(self, value: Any) -> dict[str, Any]:
        """Return what else forward can read: sizes, and what is kept beside the tensors."""
        found: dict[str, Any] = {"num_graphs": _num_graphs(value)}
        sizes = _sizes(value)
        if not isinstance(value, HeteroData):
            return {**found, **sizes[None]}
        for kind, store in stores_of(value):
            kept = {name: entry for name, entry in store.items() if _is_kept(value, entry)}
            for name, entry in {**kept, **sizes.get(kind, {})}.items():
                found[name if kind is None else f"{kind}.{name}"] = entry
        return found


def register() -> None:
    """Let programs and loaders look into PyG's objects."""
    register_container(BaseData, GraphContainer())


def _entries(graph: Any) -> list[tuple[StorageKey, str, Tensor]]:
    """Return (store, name, tensor) of every tensor, in the order that programs use."""
    _require_graph(graph)
    if isinstance(graph, Data):
        items = sorted(graph.stores[0].items(), key=lambda item: item[0])
        return [(None, name, value) for name, value in items if isinstance(value, Tensor)]
    return [
        (kind, name, value)
        for kind, store in stores_of(graph)
        for name, value in store.items()
        if isinstance(value, Tensor)
    ]


def _require_graph(graph: Any) -> None:
    if not isinstance(graph, Data | HeteroData):
        raise GraphError(
            f"Unsupported data type {type(graph).__name__}: expected a torch_geometric Data or "
            "HeteroData object, or a batch of them"
        )


def _is_kept(graph: Any, value: Any) -> bool:
    if isinstance(value, Tensor) or not is_hetero(graph):
        return False
    return not flatten(value)[0]


def _num_graphs(graph: Any) -> int | None:
    stored: int | None = graph.stores[0].__dict__.get("_num_graphs")
    if stored is None and _is_batch(graph) and isinstance(graph.stores[0].get("ptr"), Tensor):
        return int(graph.stores[0]["ptr"].shape[0]) - 1
    return stored


def _is_batch(graph: Any) -> bool:
    return isinstance(graph, Batch)


def _sizes(graph: Any) -> dict[StorageKey, dict[str, int]]:
    """Return the sizes to be stored, by store.

    A batch has all of them: those of a combined batch could not be told from its tensors. Single
    graphs have what the user stored. Never read from values: tensors may be without any.
    """
    found: dict[StorageKey, dict[str, int]] = {}
    for kind, store in stores_of(graph):
        sizes = {name: store[name] for name in _SIZES if name in store}
        if _is_batch(graph) and (kind is not None or not is_hetero(graph)):
            sizes = {**_inferred(kind, store), **sizes}
        found[kind] = {name: sizes[name] for name in _SIZES if name in sizes}
    return found


def _inferred(kind: StorageKey, store: Any) -> dict[str, int]:
    sizes = {}
    if not isinstance(kind, tuple):
        for name in ("batch", "x", "pos"):
            if name in store and isinstance(store[name], Tensor):
                sizes["num_nodes"] = int(store[name].shape[0])
                break
    if not isinstance(kind, str) and isinstance(store.get("edge_index"), Tensor):
        sizes["num_edges"] = int(store["edge_index"].shape[-1])
    return sizes


register()
