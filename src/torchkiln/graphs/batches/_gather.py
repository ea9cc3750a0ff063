"""From packs of graphs to the memory of a batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np
import torch
from torch import Tensor

from torchkiln.core import BatchTooLarge
from torchkiln.graphs._filler import spread, spread_filler
from torchkiln.graphs.batches._induced import Cut, TrimKey, columns_to_cut, cut_graph
from torchkiln.graphs.batches._layout import Edges, Layout, PlannedTensor, Text
from torchkiln.graphs.store._axes import Counts
from torchkiln.graphs.store._columns import Array, Columns
from torchkiln.graphs.store._schema import edge_axis, node_axis
from torchkiln.graphs.store._store import GraphStore
from torchkiln.graphs.store._texts import decode_texts

Pack = Sequence[int] | Counts

# The axis on which every graph is one.
_GRAPHS = "graphs"


@final
@dataclass(frozen=True, slots=True)
class Gathered:
    """Batches before they are `Batch` objects.

    Attributes:
        num_batches: How many there are.
        memory: All of them: attribute after attribute, each batch after batch.
        texts: For each batch, the lists that its texts become.
    """

    num_batches: int
    memory: Tensor
    texts: list[tuple[list[Any], ...]]


@dataclass(slots=True)
class _Entries:
    """Where each graph slot of a batch lies in the store: a row for each axis.

    Attributes:
        starts: First node or edge of the entry, or a sign of the kernels; [axes, entries].
        counts: How many it has, filler included; [axes, entries].
        totals: How many real ones each pack has; [axes, packs].
    """

    starts: Counts
    counts: Counts
    totals: Counts


@final
class Gatherer:
    """Fills the memory of batches of one layout from one store."""

    def __init__(self, store: GraphStore, layout: Layout, defaults: Mapping[str, Any]) -> None:
        from torchkiln.graphs.batches import _collate_kernels

        self._kernels = _collate_kernels
        self._store = store
        self._columns: Columns = store.unverified_columns
        self._reads = store.reads(_columns_of(layout))
        # Edges decide what is left of a graph, also where batches leave them out.
        self._cut_reads = store.reads(columns_to_cut(store.schema, layout.limits))
        self._layout = layout
        self._defaults = dict(defaults)
        # Kernels get addresses, which the columns and the layout keep valid: taking a dozen arrays
        # apart for every batch takes longer than copying what is in them.
        self._sources = [_as_bytes(self._columns.arrays[copy.column]) for copy in layout.copies]
        limits = {**layout.limits, _GRAPHS: layout.num_graphs}
        self._rows = {axis: row for row, axis in enumerate(limits)}
        self._limits = np.array(list(limits.values()), dtype=np.int64)
        self._capacities = np.array(
            [limit - (not axis.startswith("edges")) for axis, limit in limits.items()]
        )[:, None]
        self._offsets = np.array(
            [self._columns.offsets[axis].ctypes.data for axis in layout.limits], dtype=np.int64
        )
        self._copies = np.array(
            [
                (
                    source.ctypes.data,
                    self._rows[copy.axis or _GRAPHS],
                    copy.at,
                    copy.item_bytes,
                    copy.filling.ctypes.data,
                )
                for copy, source in zip(layout.copies, self._sources, strict=True)
            ],
            dtype=np.int64,
        ).reshape(-1, 5)
        ptr = {axis: pair[1] for axis, pair in layout.batch.items()} | layout.edge_ptr
        batch = {axis: pair[0] for axis, pair in layout.batch.items()}
        self._frame = tuple(self._positions(planned) for planned in (batch, ptr, layout.masks))
        self._edge_ends = {
            edge_axis(key): (node_axis(key[0]), node_axis(key[2]))
            if isinstance(key, tuple)
            else (node_axis(None), node_axis(None))
            for key in (storage.key for storage in store.schema.storages)
            if not isinstance(key, str) and edge_axis(key) in layout.limits
        }

    def _positions(self, planned: Mapping[str, PlannedTensor]) -> Counts:
        return np.array([planned[axis].at if axis in planned else -1 for axis in self._rows])

    def gather(
        self, packs: Sequence[Pack], trim: TrimKey | None
    ) -> tuple[Tensor, list[tuple[list[Any], ...]]]:
        """Return the memory of these packs, and of each the lists of its texts."""
        layout, kernels = self._layout, self._kernels
        assert len(packs) == layout.num_packs, f"{len(packs)} packs for {layout.num_packs}"
        graphs, ends = self._join(packs)
        if self._reads is not None:
            self._reads.verify(graphs)
        entries = self._locate(graphs, ends)
        cuts = self._cut(graphs, ends, entries, trim) if trim is not None else {}
        self._spread(entries)

        memory = torch.empty(layout.num_bytes, dtype=torch.uint8)
        target = memory.numpy()
        integers = target.view(np.int64)
        kernels.write_frame(
            entries.counts,
            entries.totals,
            layout.num_graphs,
            self._limits,
            *self._frame,
            integers,
            target,
        )
        kernels.gather(self._copies, entries.starts, entries.counts, target)
        for edges in layout.edges:
            row = self._rows[edges.axis]
            kernels.gather_edges(
                self._columns.arrays[edges.column],
                target.view(_integer(edges)),
                edges.tensor.at,
                layout.limits[edges.axis],
                layout.num_graphs,
                entries.starts[row],
                entries.counts[row],
                integers,
                edges.source_ptr.at,
                edges.target_ptr.at,
            )
        for entry, (graph, cut) in cuts.items():
            self._write_cut(entry, graph, cut, entries.counts, target)
        return memory, self._write_values(entries.starts[-1], entries.totals[-1], memory)

    def _join(self, packs: Sequence[Pack]) -> tuple[Counts, Counts]:
        """Return where all graphs lie in the store, and where each pack ends."""
        sizes = [len(pack) for pack in packs]
        if max(sizes) >= self._layout.num_graphs:
            raise BatchTooLarge(
                f"{max(sizes)} graphs leave no room for a filler graph in num_graphs="
                f"{self._layout.num_graphs}; raise num_graphs or put fewer graphs into a batch"
            )
        ends = np.array([0, *sizes], dtype=np.int64).cumsum()
        graphs = [self._store.physical(pack) for pack in packs]
        return graphs[0] if len(graphs) == 1 else np.concatenate(graphs), ends

    def _locate(self, graphs: Counts, ends: Counts) -> _Entries:
        kernels, num_graphs = self._kernels, self._layout.num_graphs
        num_packs = len(ends) - 1
        shape = (len(self._rows), num_packs * num_graphs)
        starts = np.empty(shape, dtype=np.int64)
        counts = np.empty(shape, dtype=np.int64)
        totals = np.empty((len(self._rows), num_packs), dtype=np.int64)
        kernels.locate(self._offsets, graphs, ends, num_graphs, starts, counts, totals)
        return _Entries(starts, counts, totals)

    def _spread(self, entries: _Entries) -> None:
        """Give what is left of every pack to its filler graphs.

        Raises:
            BatchTooLarge: Nothing is left.
        """
        if (entries.totals > self._capacities).any():
            raise self._too_large(entries.totals)
        layout = self._layout
        left = (self._limits[:, None] - entries.totals).tolist()
        nodes, edges = [self._rows[axis] for axis in layout.batch], self._edge_ends
        for pack in range(layout.num_packs):
            num_graphs = left[-1][pack]
            filler = slice(
                (pack + 1) * layout.num_graphs - num_graphs, (pack + 1) * layout.num_graphs
            )
            for row in nodes:
                entries.counts[row, filler] = spread(left[row][pack], num_graphs)
            for axis, ends in edges.items():
                row = self._rows[axis]
                # Filler nodes go to the first graphs, so these have one at both ends.
                hosts = min(left[self._rows[end]][pack] for end in ends)
                _, shares = spread_filler(hosts, left[row][pack], num_graphs)
                entries.counts[row, filler] = shares

    def _too_large(self, totals: Counts) -> BatchTooLarge:
        row, pack = np.argwhere(totals > self._capacities)[0].tolist()
        name, _, kind = list(self._rows)[row].partition(":")
        kept = "" if name == "edges" else ", of which one stays filler"
        return BatchTooLarge(
            f"{totals[-1, pack]} graphs have {totals[row, pack]} {name}"
            f"{f' of {kind!r}' if kind else ''}, but a batch holds {self._limits[row]}{kept}; "
            f"raise num_{name} or put fewer graphs into a batch (torchkiln.packing.pack plans "
            "batches that fit)"
        )

    def _cut(
        self, graphs: Counts, ends: Counts, entries: _Entries, key: TrimKey
    ) -> dict[int, tuple[int, Cut]]:
        """Find the graphs that are too large, and take them out of what kernels copy."""
        layout = self._layout
        room = np.maximum(self._limits[:, None] - 1, 0)
        suspects = (entries.counts > room)[:-1].any(axis=0)
        cuts = {}
        for entry in np.flatnonzero(suspects).tolist():
            pack, place = divmod(entry, layout.num_graphs)
            graph = int(graphs[ends[pack] + place])
            if self._cut_reads is not None:
                self._cut_reads.verify(np.array([graph]))
            cut = cut_graph(self._columns, graph, layout.limits, key)
            cuts[entry] = (graph, cut)
            for axis, kept in cut.kept.items():
                row = self._rows[axis]
                entries.totals[row, pack] -= entries.counts[row, entry] - len(kept)
                entries.counts[row, entry] = len(kept)
                entries.starts[row, entry] = self._kernels.TRIMMED
        return cuts

    def _write_cut(self, entry: int, graph: int, cut: Cut, counts: Counts, target: Array) -> None:
        layout = self._layout
        for copy, source in zip(layout.copies, self._sources, strict=True):
            if copy.axis is None:
                continue
            kept = cut.kept[copy.axis]
            items = source.reshape(-1, copy.item_bytes)
            before = int(counts[self._rows[copy.axis], :entry].sum())
            begin = copy.at + before * copy.item_bytes
            end = begin + len(kept) * copy.item_bytes
            target[begin:end] = items[self._columns.offsets[copy.axis][graph] + kept].ravel()
        pack, place = divmod(entry, layout.num_graphs)
        integers = target.view(np.int64)
        for edges in layout.edges:
            ends = cut.ends[edges.tensor.storage]
            num_edges = layout.limits[edges.axis]
            row = self._rows[edges.axis]
            before = int(counts[row, pack * layout.num_graphs : entry].sum())
            index = target.view(_integer(edges))[edges.tensor.at :]
            index = index[: layout.num_packs * 2 * num_edges]
            index = index.reshape(layout.num_packs, 2, num_edges)
            for side, ptr in enumerate((edges.source_ptr, edges.target_ptr)):
                shift = integers[ptr.at + pack * (layout.num_graphs + 1) + place]
                index[pack, side, before : before + ends.shape[1]] = ends[side] + shift

    def _write_values(
        self, starts: Counts, num_real: Counts, memory: Tensor
    ) -> list[tuple[list[Any], ...]]:
        """Write Python numbers, and return the lists of texts of each pack."""
        layout = self._layout
        if not (layout.numbers or layout.texts):
            return [()] * layout.num_packs
        is_filler = starts < 0
        by_pack = starts.reshape(layout.num_packs, layout.num_graphs)
        # Filler imitates the first graph; a pack without graphs the first one of the store.
        substitute = self._store.physical([0])
        if self._reads is not None and not num_real.all():
            self._reads.verify(substitute)
        first = np.where(num_real > 0, by_pack[:, 0], substitute[0])
        imitated = np.where(by_pack < 0, first[:, None], by_pack)
        for column, planned in layout.numbers:
            values = self._columns.arrays[column][imitated.ravel()]
            if planned.key in self._defaults:
                values[is_filler] = self._defaults[planned.key]
            memory.view(planned.dtype)[planned.at :][: len(values)].copy_(torch.from_numpy(values))
        columns = [self._texts(text, imitated, num_real.tolist()) for text in layout.texts]
        return [tuple(lists) for lists in zip(*columns, strict=True)] or [()] * layout.num_packs

    def _texts(self, text: Text, imitated: Counts, num_real: list[int]) -> list[list[Any]]:
        attribute = text.attribute
        assert attribute.axis is not None
        # All filler graphs show the same, so one more than the real ones is enough.
        shown = np.concatenate(
            [graphs[: real + 1] for graphs, real in zip(imitated, num_real, strict=True)]
        )
        column = self._columns.arrays[text.column]
        found = decode_texts(column, self._columns.offsets[attribute.axis], shown, attribute.kind)
        lists, begin = [], 0
        for real in num_real:
            end = begin + real
            filler = self._defaults.get(attribute.key, found[end])
            lists.append(found[begin:end] + [filler] * (self._layout.num_graphs - real))
            begin = end + 1
        return lists


def _columns_of(layout: Layout) -> list[str]:
    return [
        *(copy.column for copy in layout.copies),
        *(edges.column for edges in layout.edges),
        *(column for column, _ in layout.numbers),
        *(text.column for text in layout.texts),
    ]


def _integer(edges: Edges) -> np.dtype[Any]:
    return np.dtype(np.int64 if edges.tensor.dtype.itemsize == 8 else np.int32)


def _as_bytes(array: Array) -> Array:
    return array.reshape(-1).view(np.uint8)
