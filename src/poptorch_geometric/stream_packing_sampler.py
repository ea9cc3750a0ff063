"""Index lists that fill mini-batches greedily, in the order of a base sampler."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from torch.utils.data import RandomSampler, Sampler, SequentialSampler

from torchkiln.graphs.store._dataset_sizes import DatasetSizes, dataset_sizes

__all__ = ["StreamPackingSampler"]


class StreamPackingSampler(Sampler[list[int]]):
    """Yields lists of as many consecutive samples as fit into a mini-batch.

    A sample joins the open list if the limits hold and the left-over nodes and edges are each at
    least as many as the left-over graphs; else the list is yielded and a new one begun. Sizes are
    read once, from the dataset's slices where it has them.

    Args:
        data_source: A dataset of graphs.
        max_num_graphs: Graphs in a list.
        max_num_nodes: Nodes in a list, together or by type; None is the largest sample times
            `max_num_graphs`.
        max_num_edges: The same for edges.
        base_sampler: The order of samples; None is that of the dataset.
        allow_skip_data: Leave out samples that do not fit an empty list.
        keep_oversized: Yield such samples in lists of their own, for a collater that trims them.

    Raises:
        ValueError: if a limit is too small for `max_num_graphs`, or the base sampler is empty.
    """

    def __init__(
        self,
        data_source: Any,
        max_num_graphs: int,
        max_num_nodes: int | Mapping[Any, int] | None = None,
        max_num_edges: int | Mapping[Any, int] | None = None,
        base_sampler: Sampler[int] | None = None,
        allow_skip_data: bool = False,
        keep_oversized: bool = False,
    ) -> None:
        super().__init__()
        if max_num_graphs is None or max_num_graphs < 1:
            raise ValueError(f"max_num_graphs must be at least 1, got {max_num_graphs}")
        self.data_source = data_source
        sampler: Any = SequentialSampler(data_source) if base_sampler is None else base_sampler
        self.base_sampler = sampler
        if len(sampler) == 0:
            raise ValueError("The base sampler yields no samples")
        self.max_num_graphs = max_num_graphs
        self.max_num_nodes = self._limit("nodes", max_num_nodes)
        self.max_num_edges = self._limit("edges", max_num_edges)
        self.allow_skip_data = allow_skip_data
        self.keep_oversized = keep_oversized

    @functools.cached_property
    def _sizes(self) -> DatasetSizes:
        return dataset_sizes(self.data_source)

    def _limit(self, what: str, limit: int | Mapping[Any, int] | None) -> int | Mapping[Any, int]:
        if limit is None:
            return int(getattr(self._sizes, f"total_{what}").max()) * self.max_num_graphs
        if _total(limit) < self.max_num_graphs:
            raise ValueError(
                f"max_num_{what} must be at least max_num_graphs={self.max_num_graphs}, got {limit}"
            )
        return limit

    @functools.cached_property
    def _columns(self) -> list[tuple[np.ndarray, int]]:
        """Sizes and limits that every list has to keep; totals first."""
        columns = [
            (self._sizes.total_nodes, _total(self.max_num_nodes)),
            (self._sizes.total_edges, _total(self.max_num_edges)),
        ]
        for limits, counts in (
            (self.max_num_nodes, self._sizes.nodes),
            (self.max_num_edges, self._sizes.edges),
        ):
            if isinstance(limits, Mapping):
                # Sizes may name types that no graph has.
                columns += [(counts[kind], limits[kind]) for kind in counts if kind in limits]
        return columns

    def __iter__(self) -> Iterator[list[int]]:
        opened: list[int] = []
        left = self._empty()
        for index in self.base_sampler:
            if self._fits(opened, left, index):
                opened.append(index)
                left = self._take(left, index)
                continue
            if not self._fits([], self._empty(), index):
                if self.allow_skip_data:
                    continue
                if not self.keep_oversized:
                    raise RuntimeError(self._too_large(index))
                if opened:
                    yield opened
                yield [index]
                opened, left = [], self._empty()
                continue
            yield opened
            opened, left = [index], self._take(self._empty(), index)
        if opened:
            yield opened

    def _empty(self) -> list[int]:
        return [limit for _, limit in self._columns]

    def _take(self, left: list[int], index: int) -> list[int]:
        pairs = zip(left, self._columns, strict=True)
        return [room - int(counts[index]) for room, (counts, _) in pairs]

    def _fits(self, opened: list[int], left: list[int], index: int) -> bool:
        graphs_left = self.max_num_graphs - len(opened) - 1
        nodes_left, edges_left, *types_left = self._take(left, index)
        return (
            graphs_left >= 0
            and min(nodes_left, edges_left) >= graphs_left
            and (min(types_left, default=0) >= 0)
        )

    def _too_large(self, index: int) -> str:
        return (
            f"Sample {index} has {int(self._sizes.total_nodes[index])} nodes and "
            f"{int(self._sizes.total_edges[index])} edges, and does not fit into a batch of "
            f"{self.max_num_nodes} nodes and {self.max_num_edges} edges that has to leave room "
            f"for {self.max_num_graphs} graphs; raise the limits, or skip such samples with "
            "allow_skip_data=True (OverSizeStrategy.Skip), or trim them "
            "(OverSizeStrategy.TrimNodesAndEdges)"
        )

    @functools.cached_property
    def _length(self) -> int:
        return sum(1 for _ in self)

    def __len__(self) -> int:
        """Return the number of lists, counted once.

        Raises:
            NotImplementedError: for a random order, where it changes from pass to pass.
        """
        if isinstance(self.base_sampler, RandomSampler):
            raise NotImplementedError(
                "The number of packed batches depends on the order, which a RandomSampler draws "
                "anew for each pass"
            )
        return self._length


def _total(limit: int | Mapping[Any, int]) -> int:
    return sum(limit.values()) if isinstance(limit, Mapping) else limit
