"""`GraphStore`: a dataset of graphs as a few flat arrays, in memory or mapped from files."""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self, final, overload

import numpy as np
import torch
from numpy.typing import NDArray

from torchkiln.core import StoreError
from torchkiln.graphs._levels import StorageKey
from torchkiln.graphs.store._axes import Counts
from torchkiln.graphs.store._blocks import Reads
from torchkiln.graphs.store._columns import (
    Columns,
    flat_columns,
    flatten_in_memory,
    read_only,
)
from torchkiln.graphs.store._from_arrays import columns_from_arrays
from torchkiln.graphs.store._schema import (
    NUMBERS,
    TEXTS,
    Attribute,
    StoreSchema,
    check_exclude_keys,
    column_name,
    node_axis,
)
from torchkiln.graphs.store._store_files import save_columns, stream_to_directory
from torchkiln.graphs.store._store_opening import open_columns
from torchkiln.graphs.store._texts import decode_texts


@final
class GraphStore:
    """Graphs in contiguous arrays, one per attribute, from which batches are gathered.

    `store[i]` gives back graph `i` bit for bit; a slice, a list or an array of indices (or a mask)
    gives a view that shares everything. A store in a directory is mapped into memory: opening takes
    milliseconds, processes share one copy, and pickling sends the path instead of the data.

    Make one with `from_dataset`, `from_arrays`, `build` or `open`.
    """

    def __init__(
        self,
        columns: Columns,
        *,
        path: Path | None = None,
        digest: str | None = None,
        selected: Counts | None = None,
    ) -> None:
        offsets = {axis: read_only(array) for axis, array in columns.offsets.items()}
        self._columns = dataclasses.replace(columns, offsets=offsets)
        self._path = path
        self._digest = digest
        self._selected = selected

    @classmethod
    def from_dataset(
        cls,
        dataset: Iterable[Any],
        *,
        exclude_keys: Iterable[str] = (),
        levels: Mapping[str, str] | None = None,
        progress: bool = True,
    ) -> Self:
        """Flatten a dataset, or any iterable of `Data` or `HeteroData`, in memory.

        A PyG `InMemoryDataset` without a transform is taken as it is, without a copy: the store
        then sees changes made to it. A transform is applied once; if it is random, it is frozen.

        Args:
            dataset: The graphs; all need the same attributes.
            exclude_keys: Attributes to leave out.
            levels: "node", "edge" or "graph" by attribute, where shapes cannot tell.
            progress: Draw a progress bar.

        Raises:
            StoreError: There is no graph, or one has something that a store cannot keep.
            GraphError: Nothing tells whether an attribute describes nodes, edges or graphs.
        """
        excluded = check_exclude_keys(exclude_keys)
        columns = flat_columns(dataset, excluded, levels or {})
        selected = None
        if columns is None:
            columns = flatten_in_memory(dataset, excluded, levels or {}, progress=progress)
        else:
            indices: Any = getattr(dataset, "_indices", None)
            if indices is not None:
                selected = _to_indices(list(indices), columns.num_graphs)
                if not len(selected):
                    raise StoreError("there is no graph to store: the dataset is empty")
        columns.check_edges()
        return cls(columns, selected=selected)

    @classmethod
    def from_arrays(
        cls,
        *,
        node_offsets: Any,
        edge_offsets: Any,
        node: Mapping[str, Any],
        edge: Mapping[str, Any],
        graph: Mapping[str, Any],
    ) -> Self:
        """Take flat NumPy arrays as they are: no `Data` is made, and nothing is copied.

        The arrays must not change afterwards. Nothing but `edge_index` is ever counted up in
        batches, whatever its name; PyG's own loaders would do so with names that contain "index".

        Args:
            node_offsets: Where the nodes of each graph begin and end, [num_graphs + 1].
            edge_offsets: The same of edges.
            node: Attributes by name, [num_nodes, ...] over all graphs.
            edge: Attributes, [num_edges, ...]; `edge_index` is [2, num_edges], counted from 0 in
                each graph.
            graph: Attributes, [num_graphs, ...]; `store[i]` has what follows the first dimension,
                so a number a graph that PyG batches as a vector is [num_graphs, 1].

        Raises:
            StoreError: Lengths do not fit, or an edge leads to a node that its graph has not.
        """
        return cls(columns_from_arrays(node_offsets, edge_offsets, node, edge, graph))

    @classmethod
    def build(
        cls,
        dataset: Iterable[Any],
        directory: str | os.PathLike[str],
        *,
        exclude_keys: Iterable[str] = (),
        levels: Mapping[str, str] | None = None,
        overwrite: bool = False,
        progress: bool = True,
    ) -> Self:
        """Flatten a dataset into a directory, graph by graph, and open it.

        Memory is needed for the sizes only. The directory appears when it is complete; a build that
        was killed leaves at most hidden directories (`.NAME.*.torchkiln-tmp` and
        `.NAME.torchkiln-old`), which the next build there cleans up, and never loses a store that
        it was to replace.
        """
        path = Path(directory)
        excluded = check_exclude_keys(exclude_keys)
        levels = levels or {}
        if flat_columns(dataset, excluded, levels) is not None:
            store = cls.from_dataset(
                dataset, exclude_keys=excluded, levels=levels, progress=progress
            )
            return store.save(path, overwrite=overwrite)
        stream_to_directory(dataset, path, excluded, levels, overwrite=overwrite, progress=progress)
        return cls.open(path)

    @classmethod
    def open(cls, directory: str | os.PathLike[str], *, verify: bool = False) -> Self:
        """Open a directory that `build` or `save` made.

        Graphs are compared with checksums when they are read for the first time, so no damaged one
        is ever handed out.

        Args:
            directory: The store.
            verify: Read everything and compare checksums now.

        Raises:
            StoreError: It is no store, damaged, or of another version.
        """
        path = Path(directory).absolute()
        columns, digest = open_columns(path, verify=verify)
        return cls(columns, path=path, digest=digest)

    def save(self, directory: str | os.PathLike[str], *, overwrite: bool = False) -> GraphStore:
        """Write the store, or what a view selects of it, to a directory, and open that."""
        if not len(self):
            raise StoreError(f"there is no graph to write to {directory}: the selection is empty")
        save_columns(self._compact(), Path(directory), overwrite=overwrite)
        return GraphStore.open(directory)

    @property
    def schema(self) -> StoreSchema:
        return self._columns.schema

    @property
    def columns(self) -> Columns:
        """The arrays of all graphs, also of those that a view does not select.

        Raises:
            StoreError: They are mapped from a file that is damaged.
        """
        self._columns.verify_all()
        return self._columns

    @property
    def unverified_columns(self) -> Columns:
        """The same, for readers who verify what they read: see `reads`."""
        return self._columns

    def reads(self, names: Iterable[str]) -> Reads | None:
        """Return what verifies graphs of this view before these columns of them are read.

        None if there is no need to: the store is in memory.
        """
        return self._columns.reads(names, self._selected)

    @property
    def path(self) -> Path | None:
        """The directory that the store is mapped from."""
        return self._path

    @property
    def is_hetero(self) -> bool:
        return self.schema.is_hetero

    @functools.cached_property
    def sizes(self) -> dict[str, NDArray[np.int64]]:
        """Nodes and edges of every graph, as planners want them; no graph is loaded.

        The axes are 'nodes' and 'edges', or 'nodes:paper' and 'edges:paper,cites,paper' for types.
        """
        axes = (*self.schema.node_axes, *self.schema.edge_axes)
        return {axis: read_only(self._sizes_of(axis)) for axis in axes}

    def _sizes_of(self, axis: str) -> Counts:
        offsets = self._columns.offsets[axis]
        if self._selected is None:
            return np.diff(offsets)
        return np.asarray(offsets[self._selected + 1] - offsets[self._selected])

    def physical(self, indices: Any) -> Counts:
        """Return where graphs of this view lie in the columns.

        Raises:
            IndexError: There is no such graph.
        """
        chosen = _to_indices(indices, len(self))
        return chosen if self._selected is None else self._selected[chosen]

    def __len__(self) -> int:
        return self._columns.num_graphs if self._selected is None else len(self._selected)

    @overload
    def __getitem__(self, index: int) -> Any: ...
    @overload
    def __getitem__(self, index: slice | Sequence[int] | Counts | torch.Tensor) -> GraphStore: ...
    def __getitem__(self, index: Any) -> Any:
        """Return one graph, or a view of several."""
        if isinstance(index, slice):
            index = np.arange(len(self))[index]
        elif np.ndim(index) == 0:
            return self._load(int(self.physical([index])[0]))
        return GraphStore(
            self._columns, path=self._path, digest=self._digest, selected=self.physical(index)
        )

    def __iter__(self) -> Iterator[Any]:
        return (self[index] for index in range(len(self)))

    @functools.cached_property
    def _reads(self) -> Reads | None:
        return self.reads(name for name, _ in self.schema.stored())

    def _load(self, graph: int) -> Any:
        from torch_geometric.data import Data, HeteroData

        if self._reads is not None:
            self._reads.verify(np.array([graph]))
        result = HeteroData() if self.is_hetero else Data()
        for storage in self.schema.storages:
            store = result.stores[0] if storage.key is None else result[storage.key]
            for attribute in storage.attributes:
                store[attribute.key] = self._value(storage.key, attribute, graph)
        return result

    def _value(self, storage: StorageKey, attribute: Attribute, graph: int) -> Any:
        if attribute.kind == "num_nodes":
            offsets = self._columns.offsets[node_axis(storage)]
            return int(offsets[graph + 1] - offsets[graph])
        array = self._columns.arrays[column_name(storage, attribute.key)]
        if attribute.axis is None:
            piece = array[graph]
            if attribute.kind in NUMBERS:
                return piece.item()
        else:
            offsets = self._columns.offsets[attribute.axis]
            if attribute.kind in TEXTS:
                return decode_texts(array, offsets, np.array([graph]), attribute.kind)[0]
            begin, end = int(offsets[graph]), int(offsets[graph + 1])
            piece = array[:, begin:end] if attribute.is_edge_index else array[begin:end]
        # A copy: what the user does to a graph must not reach the store.
        return torch.from_numpy(np.array(piece, order="C")).view(attribute.torch_dtype)

    def _compact(self) -> Columns:
        """Return the columns of the selected graphs only."""
        if self._selected is None:
            return self.columns
        full = self._columns
        if self._reads is not None:
            self._reads.verify(self._selected)
        offsets, gathered = {}, {}
        for axis in full.offsets:
            sizes = self._sizes_of(axis)
            offsets[axis] = np.concatenate([[0], np.cumsum(sizes)])
            first = np.repeat(full.offsets[axis][self._selected] - offsets[axis][:-1], sizes)
            gathered[axis] = first + np.arange(len(first))
        arrays = {}
        for name, attribute in self.schema.stored():
            chosen = self._selected if attribute.axis is None else gathered[attribute.axis]
            dim = 1 if attribute.is_edge_index else 0
            arrays[name] = np.take(full.arrays[name], chosen, axis=dim)
        return Columns(full.schema, offsets, arrays)

    def __reduce__(self) -> Any:
        if self._path is not None:
            return _reopen, (self._path, self._digest, self._selected)
        return _restore, (self._compact(),)

    def __repr__(self) -> str:
        where = f" in {self._path}" if self._path else ""
        return f"GraphStore({len(self):,} graphs{where})"

    def __str__(self) -> str:
        """Draw the store as a small table: what there is of each axis, and the attributes."""
        lines = [repr(self)]
        for axis, sizes in self.sizes.items():
            lines.append(
                f"  {axis}: {int(sizes.sum()):,} in all, {sizes.mean():.1f} a graph "
                f"({int(sizes.min()):,} to {int(sizes.max()):,})"
            )
        for storage in self.schema.storages:
            for a in storage.attributes:
                shape = f" {list(a.shape)}" if a.kind == "tensor" else ""
                follows = f" follows {a.axis}" if a.kind == "tensor" and a.axis else ""
                kind = a.dtype if a.kind == "tensor" else a.kind
                lines.append(f"  {column_name(storage.key, a.key)}: {kind}{shape}{follows}")
        return "\n".join(lines)


def _to_indices(indices: Any, length: int) -> Counts:
    array = np.asarray(indices)
    if array.dtype == bool:
        if len(array) != length:
            raise IndexError(f"a mask of {len(array)} for a store of {length} graphs")
        array = np.flatnonzero(array)
    if array.size == 0:
        return np.zeros(0, dtype=np.int64)
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise IndexError(f"graphs are selected by whole numbers or a mask, got {indices!r}")
    array = array.astype(np.int64, copy=False)
    low, high = int(array.min()), int(array.max())
    if low < -length or high >= length:
        wrong = low if low < -length else high
        raise IndexError(f"graph {wrong} of a store with {length} graphs")
    return array + length * (array < 0) if low < 0 else array


def _restore(columns: Columns) -> GraphStore:
    return GraphStore(columns)


def _reopen(path: Path, digest: str, selected: Counts | None) -> GraphStore:
    columns, found = open_columns(path, verify=False)
    if found != digest:
        raise StoreError(f"{path} was built again since; open the store anew")
    return GraphStore(columns, path=path, digest=digest, selected=selected)
