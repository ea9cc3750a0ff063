"""From the memory of a batch to a PyG `Batch` of views."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from typing import Any, final

import torch
from torch import Tensor

from torchkiln.graphs._levels import StorageKey
from torchkiln.graphs._padding_seen import mark_padded
from torchkiln.graphs.batches._gather import Gathered
from torchkiln.graphs.batches._layout import Layout
from torchkiln.graphs.batches._tensor_batch import TensorBatch
from torchkiln.graphs.store._schema import (
    NUMBERS,
    TEXTS,
    Attribute,
    Storage,
    StoreSchema,
    edge_axis,
    node_axis,
)


@final
class Wrapper:
    """Makes `Batch` objects of one layout; needs no store, so it can be in any process.

    Args:
        schema: Of the store.
        layout: Of `num_batches` batches together.
        num_batches: In how many batches its packs are cut.
        combined: Whether a batch has the form for programs, or that of PyG.
    """

    def __init__(
        self, schema: StoreSchema, layout: Layout, *, num_batches: int, combined: bool
    ) -> None:
        self._schema = schema
        self._layout = layout
        self._combined = combined
        self._prototype: Any = None
        planned = (*layout.tensors, *layout.edge_ptr.values())
        # Attribute access adds up over all tensors of all batches.
        self._views = []
        for tensor in planned:
            shape = (tensor.shape[0] // num_batches, *tensor.shape[1:])
            self._views.append((tensor.dtype, shape, tensor.stride, tensor.at, math.prod(shape)))
        self._number = {tensor: number for number, tensor in enumerate(planned)}
        self._texts = [(text.storage, text.attribute.key) for text in layout.texts]
        self._steps = [list(self._steps_of(storage)) for storage in schema.storages]
        self._memories = (
            [] if combined else [self._memory_of(storage) for storage in schema.storages]
        )

    def wrap(self, gathered: Gathered, number: int) -> Any:
        """Return one of the batches; its tensors share the memory."""
        tensors = self._make_views(gathered.memory, number)
        batch = copy.copy(self._make_prototype())
        for storage, steps, store in zip(
            self._schema.storages, self._steps, batch.stores, strict=True
        ):
            # Straight into the dict: setting items through the storage looks for caches to clear,
            # which a new one has not, and takes as long as making the tensors.
            mapping = store._mapping
            for key, kind, value in steps:
                if kind == "tensor":
                    mapping[key] = tensors[value]
                elif kind == "text":
                    mapping[key] = gathered.texts[number][value]
                else:
                    mapping[key] = value
            if not self._combined and "num_nodes" in store:
                ptr = tensors[self._number[self._layout.batch[node_axis(storage.key)][1]]]
                store._num_nodes = ptr.diff().tolist()
        batch._num_graphs = self._layout.num_graphs
        if not self._combined:
            self._remember_graphs(batch, tensors)
        return batch

    def tensors(self, gathered: Gathered, number: int) -> TensorBatch:
        """Return the tensors of one of the batches, which share the memory; needs no PyG."""
        views = self._make_views(gathered.memory, number)
        steps = (step for steps in self._steps for step in steps)
        return TensorBatch({key: views[at] for key, kind, at in steps if kind == "tensor"})

    def _make_views(self, memory: Tensor, number: int) -> list[Tensor]:
        mark_padded(memory)
        typed: dict[torch.dtype, tuple[Tensor, int]] = {}
        tensors = []
        for dtype, shape, stride, at, size in self._views:
            if dtype not in typed:
                view = memory.view(dtype)
                typed[dtype] = (view, int(view.storage_offset()))
            view, offset = typed[dtype]
            tensors.append(view.as_strided(shape, stride, offset + at + number * size))
        return tensors

    def _make_prototype(self) -> Any:
        # PyG looks for the class of a batch each time, which takes longer than all the rest.
        if self._prototype is None:
            from torch_geometric.data import Batch, Data, HeteroData

            self._prototype = Batch(_base_cls=HeteroData if self._schema.is_hetero else Data)
            for storage in self._schema.storages:
                if storage.key is not None:
                    self._prototype[storage.key]  # PyG makes a storage when it is asked for
        return self._prototype

    def _steps_of(self, storage: Storage) -> Iterator[tuple[str, str, Any]]:
        """Yield what to set in one storage, in order: a tensor, a text, or a size."""
        planned = [tensor for tensor in self._layout.tensors if tensor.storage == storage.key]
        sizes = self._sizes_of(storage)
        if self._combined:
            yield from ((tensor.key, "tensor", self._number[tensor]) for tensor in planned)
            yield from ((key, "size", size) for key, size in sizes.items())
            return
        by_key = {tensor.key: tensor for tensor in planned}
        for attribute in storage.attributes:
            key = attribute.key
            if key == "num_nodes":
                yield key, "size", sizes[key]
            elif (storage.key, key) in self._texts:
                yield key, "text", self._texts.index((storage.key, key))
            elif key in by_key:
                yield key, "tensor", self._number[by_key.pop(key)]
        # What collation adds comes last.
        yield from ((key, "tensor", self._number[tensor]) for key, tensor in by_key.items())

    def _sizes_of(self, storage: Storage) -> dict[str, int]:
        limits = self._layout.limits
        sizes = {}
        if node_axis(storage.key) in limits:
            sizes["num_nodes"] = limits[node_axis(storage.key)]
        if any(attribute.is_edge_index for attribute in storage.attributes):
            sizes["num_edges"] = limits[edge_axis(storage.key)]
        return sizes

    def _memory_of(self, storage: Storage) -> list[tuple[str, Any, Any]]:
        """Say for each attribute where its graphs begin, and what its indices were counted up by.

        Both are a tensor that is always the same, or the number of one in the batch.
        """
        shown = {key for key, kind, _ in self._steps_of(storage) if kind != "size"}
        return [
            (a.key, self._slices_of(storage.key, a), self._increments_of(storage.key, a))
            for a in storage.attributes
            if a.key in shown
        ]

    def _slices_of(self, storage: StorageKey, attribute: Attribute) -> Any:
        axis = attribute.axis
        if axis is None or attribute.kind in TEXTS:
            length = attribute.shape[0] if attribute.shape and axis is None else 1
            return torch.arange(self._layout.num_graphs + 1) * length
        if axis.startswith("nodes"):
            return self._number[self._layout.batch[axis][1]]
        return self._number[self._layout.edge_ptr[axis]]

    def _increments_of(self, storage: StorageKey, attribute: Attribute) -> Any:
        if attribute.is_edge_index:
            ends = (storage[0], storage[2]) if isinstance(storage, tuple) else (None, None)
            return tuple(self._number[self._layout.batch[node_axis(end)][1]] for end in ends)
        is_tensor = attribute.kind == "tensor" or attribute.kind in NUMBERS
        return torch.zeros(self._layout.num_graphs, dtype=torch.int64) if is_tensor else None

    def _remember_graphs(self, batch: Any, tensors: list[Tensor]) -> None:
        """Let PyG's `to_data_list` and `batch[i]` find the graphs."""
        all_slices: dict[Any, Any] = {}
        all_increments: dict[Any, Any] = {}
        for storage, memory in zip(self._schema.storages, self._memories, strict=True):
            slices, increments = all_slices, all_increments
            if storage.key is not None:
                slices = all_slices[storage.key] = {}
                increments = all_increments[storage.key] = {}
            for key, begins, counted in memory:
                slices[key] = tensors[begins] if isinstance(begins, int) else begins
                if isinstance(counted, tuple):
                    source, target = (tensors[number][:-1] for number in counted)
                    counted = source if storage.key is None else torch.stack([source, target], 1)
                    counted = counted if storage.key is None else counted.unsqueeze(2)
                increments[key] = counted
        batch._slice_dict = all_slices
        batch._inc_dict = all_increments
