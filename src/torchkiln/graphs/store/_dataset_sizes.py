"""Nodes and edges of every graph of a dataset, read without loading graphs where possible."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from torchkiln.core._progress import progress_bar
from torchkiln.graphs._errors import GraphError
from torchkiln.graphs._levels import Census, StorageKey, count

Counts = NDArray[np.int64]

# Datasets from this length on show a progress bar by default, as PyG's summary does.
_MANY = 10_000


@dataclass(frozen=True, slots=True)
class DatasetSizes:
    """The size of every graph, by type; the type of homogeneous graphs is None."""

    nodes: dict[StorageKey, Counts]
    edges: dict[StorageKey, Counts]

    @property
    def total_nodes(self) -> Counts:
        """Nodes of all types, by graph."""
        return _sum(self.nodes)

    @property
    def total_edges(self) -> Counts:
        """Edges of all types, by graph."""
        return _sum(self.edges)


def _sum(columns: dict[StorageKey, Counts]) -> Counts:
    total: Counts = np.sum(list(columns.values()), axis=0, dtype=np.int64)
    return total


def dataset_sizes(dataset: Sequence[Any], *, progress: bool | None = None) -> DatasetSizes:
    """Return the sizes of all graphs of a dataset.

    Args:
        dataset: PyG's datasets, or anything with a length and graphs by index. A PyG dataset in
            memory without a transform is read from its slices; others graph by graph.
        progress: Show a bar while graphs are read; None decides by their number.

    Raises:
        GraphError: for an empty dataset, or a graph whose number of nodes is not known.
    """
    number = len(dataset)
    if number == 0:
        raise GraphError("the dataset is empty, so there are no sizes to read")
    show = number >= _MANY if progress is None else progress
    return _from_slices(dataset) or _from_graphs(dataset, show)


def _from_slices(dataset: Any) -> DatasetSizes | None:
    """Read what an `InMemoryDataset` knows of the graphs that it has joined, if it is one."""
    from torch_geometric.data import Data, InMemoryDataset

    if not isinstance(dataset, InMemoryDataset) or dataset.transform is not None:
        return None
    joined, slices = dataset._data, dataset.slices
    # A subclass may make graphs in its own `get`, which slices say nothing about.
    overridden = type(dataset).get is not InMemoryDataset.get
    if overridden or type(joined) is not Data or not slices or "num_nodes" in joined:
        return None
    nodes = next((name for name in ("x", "pos") if name in slices), None)
    if nodes is None or "edge_index" not in slices:
        return None
    indices = np.asarray(list(dataset.indices()), dtype=np.int64)
    by_node, by_edge = (_lengths(slices[name])[indices] for name in (nodes, "edge_index"))
    return DatasetSizes({None: by_node}, {None: by_edge})


def _lengths(slices: Tensor | Sequence[int]) -> Counts:
    ends = np.asarray(slices, dtype=np.int64)
    return ends[1:] - ends[:-1]


def _from_graphs(dataset: Sequence[Any], progress: bool) -> DatasetSizes:
    graphs = (dataset[index] for index in range(len(dataset)))
    parts = [
        _size(graph, index)
        for index, graph in enumerate(
            progress_bar(graphs, total=len(dataset), desc="Reading sizes", show=progress)
        )
    ]
    node_types = dict.fromkeys(kind for part in parts for kind in part.nodes)
    edge_types = dict.fromkeys(kind for part in parts for kind in part.edges)
    return DatasetSizes(
        {kind: _column([part.nodes.get(kind) for part in parts]) for kind in node_types},
        {kind: _column([part.edges.get(kind) for part in parts]) for kind in edge_types},
    )


def _size(graph: Any, index: int) -> Census:
    if not hasattr(graph, "num_nodes"):
        raise GraphError(
            f"entry {index} of the dataset is a {type(graph).__name__}, not a graph; datasets for "
            "fixed-size batches hold torch_geometric Data or HeteroData"
        )
    return count([graph])


def _column(sizes: Sequence[list[int] | None]) -> Counts:
    # A type that a graph does not have counts as empty.
    return np.array([0 if size is None else size[0] for size in sizes], dtype=np.int64)
