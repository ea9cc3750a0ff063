"""`Clusters`: one large graph as a collection of sub-graphs that can be joined again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from torchkiln.core import OptionsError
from torchkiln.graphs.sampling._partition import partition_graph

Indices = NDArray[np.int64]


@final
class Clusters:
    """The clusters of a graph; `clusters[i]` is the sub-graph of one, `merge` that of several.

    Holds the given data and no copy of its attributes.

    Args:
        data: A homogeneous graph.
        assignment: The cluster of each node, from 0; see `partition_graph`. None may be empty.

    Raises:
        OptionsError: The assignment does not fit the data, or the data is not a `Data`.
    """

    def __init__(self, data: Any, assignment: Tensor) -> None:
        from torch_geometric.data import Data

        if not isinstance(data, Data) or data.edge_index is None:
            raise OptionsError(
                f"clusters are made of a Data object with edge_index, got {type(data).__name__}; "
                "convert a HeteroData with to_homogeneous()"
            )
        parts = assignment.cpu().to(torch.int64).numpy()
        if parts.shape != (data.num_nodes,) or (parts.size and parts.min() < 0):
            raise OptionsError(
                f"the assignment must be one cluster (0, 1, ...) for each of {data.num_nodes} "
                f"nodes, got shape {parts.shape}"
            )
        counts = np.bincount(parts)
        if not counts.all():
            raise OptionsError(f"cluster {int(np.argmin(counts))} has no node; number them densely")
        self._data = data
        self._parts = parts
        # Nodes and edges cluster by cluster; an edge belongs to the cluster of its source.
        self._nodes = np.argsort(parts, kind="stable")
        self._node_starts = np.concatenate([[0], np.cumsum(counts)])
        self._rank = np.empty(len(parts), dtype=np.int64)  # of a node within its cluster
        self._rank[self._nodes] = np.arange(len(parts)) - np.repeat(self._node_starts[:-1], counts)
        self._ends = data.edge_index.cpu().to(torch.int64).numpy()
        source_parts = parts[self._ends[0]]
        self._edges = np.argsort(source_parts, kind="stable")
        self._edge_starts = np.searchsorted(source_parts[self._edges], np.arange(len(counts) + 1))

    @classmethod
    def partition(cls, data: Any, num_parts: int, *, seed: int = 0) -> Self:
        """Make `num_parts` clusters of equal size with few edges between them."""
        edge_index = getattr(data, "edge_index", None)
        if not isinstance(edge_index, Tensor):
            raise OptionsError(f"a graph with edge_index is needed, got {type(data).__name__}")
        return cls(data, partition_graph(edge_index, int(data.num_nodes), num_parts, seed=seed))

    @classmethod
    def from_pyg(cls, cluster_data: Any) -> Self:
        """Take over PyG's `ClusterData`, with the order of nodes that it has made."""
        partition = cluster_data.partition
        degrees = partition.indptr.diff()
        ends = [torch.arange(len(degrees)).repeat_interleave(degrees), partition.index]
        if partition.sparse_format == "csc":
            ends.reverse()
        data = cluster_data.data.clone("edge_index")
        data.edge_index = torch.stack(ends)
        sizes = partition.partptr.diff()
        return cls(data, torch.arange(len(sizes)).repeat_interleave(sizes))

    @property
    def data(self) -> Any:
        """The whole graph."""
        return self._data

    @property
    def assignment(self) -> Indices:
        """The cluster of each node."""
        return self._parts

    @property
    def num_parts(self) -> int:
        return len(self._node_starts) - 1

    @property
    def num_nodes(self) -> Indices:
        """Nodes of each cluster."""
        return np.diff(self._node_starts)

    @property
    def num_cut_edges(self) -> int:
        """Edges between clusters, which a batch only has if it holds both."""
        sources, targets = self._ends
        return int((self._parts[sources] != self._parts[targets]).sum())

    def __len__(self) -> int:
        return self.num_parts

    def __getitem__(self, index: int) -> Any:
        if not -len(self) <= index < len(self):
            raise IndexError(f"cluster {index} is outside 0..{len(self) - 1}")
        return self.merge([index % len(self)])

    def merge(self, indices: Sequence[int] | Indices) -> Any:
        """Return the sub-graph of some clusters, with all edges between their nodes.

        Nodes come cluster by cluster; `n_id` are their numbers in the whole graph.
        """
        from torch_geometric.loader.utils import filter_data

        nodes, row, column, edges = map(torch.from_numpy, self._select(indices))
        graph = filter_data(self._data, nodes, row, column, edges)
        if "n_id" not in graph:
            graph.n_id = nodes
        return graph

    def measure(self, indices: Sequence[int] | Indices) -> tuple[int, int]:
        """Return the number of nodes and edges that `merge` would give."""
        nodes, _, _, edges = self._select(indices)
        return len(nodes), len(edges)

    def _select(
        self, indices: Sequence[int] | Indices
    ) -> tuple[Indices, Indices, Indices, Indices]:
        """Return nodes, new ends of edges, and edges of some clusters together."""
        bases = np.full(len(self), -1, dtype=np.int64)
        sizes = self.num_nodes[list(indices)]
        bases[list(indices)] = np.cumsum(sizes) - sizes
        nodes = _gather(self._nodes, self._node_starts, indices)
        edges = _gather(self._edges, self._edge_starts, indices)
        sources, targets = self._ends[:, edges]
        inside = bases[self._parts[targets]] >= 0
        row, column = (
            bases[self._parts[end]] + self._rank[end] for end in (sources[inside], targets[inside])
        )
        return nodes, row, column, edges[inside]

    def __repr__(self) -> str:
        sizes = self.num_nodes
        return (
            f"Clusters({len(self)} of {sizes.min()} to {sizes.max()} nodes; "
            f"{self.num_cut_edges} of {self._ends.shape[1]} edges between them)"
        )


def _gather(values: Indices, starts: Indices, indices: Sequence[int] | Indices) -> Indices:
    parts = [values[starts[index] : starts[index + 1]] for index in indices]
    return np.concatenate(parts) if parts else np.empty(0, dtype=np.int64)
