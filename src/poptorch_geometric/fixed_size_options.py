"""The sizes of every mini-batch, and what padding holds."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from typing import Any, Self

from torch_geometric.data import HeteroData

from torchkiln.graphs import BatchSpec, PadValues
from torchkiln.graphs._spec import to_sizes
from torchkiln.graphs.store._dataset_sizes import dataset_sizes

__all__ = ["FixedSizeOptions"]

Sizes = int | dict[Any, int]


class FixedSizeOptions:
    """How many nodes, edges and graphs every mini-batch has, padding included.

    Args:
        num_nodes: Nodes; for heterogeneous data also a dict by node type.
        num_edges: Edges; None or 0 means `n * (n - 1)` for n nodes.
        num_graphs: Graphs, at least one of them padding.
        node_pad_value: What padding nodes hold; None is 0.
        edge_pad_value: What padding edges hold; None is 0.
        graph_pad_value: What padding graphs hold; None is 0.
        pad_graph_defaults: Values of padding graphs for attributes that are not tensors.

    Raises:
        ValueError: if `num_graphs` leaves no room for a padding graph, a size is not a whole
            number, or a pad value is not finite.
    """

    def __init__(
        self,
        num_nodes: Sizes,
        num_edges: Sizes | None = None,
        num_graphs: int = 2,
        node_pad_value: float | None = None,
        edge_pad_value: float | None = None,
        graph_pad_value: float | None = None,
        pad_graph_defaults: dict[str, Any] | None = None,
    ) -> None:
        _require_two_graphs("num_graphs", num_graphs)
        self.num_nodes: Sizes = to_sizes("num_nodes", num_nodes)
        if not num_edges:
            total = _total(self.num_nodes)
            num_edges = total * (total - 1)
        self.num_edges: Sizes = to_sizes("num_edges", num_edges)
        self.num_graphs: int = to_sizes("num_graphs", num_graphs)
        self.node_pad_value = 0.0 if node_pad_value is None else node_pad_value
        self.edge_pad_value = 0.0 if edge_pad_value is None else edge_pad_value
        self.graph_pad_value = 0.0 if graph_pad_value is None else graph_pad_value
        self.pad_graph_defaults = dict(pad_graph_defaults or {})
        self.to_pad_values()  # refuses what is not finite

    @classmethod
    def from_dataset(
        cls,
        dataset: Any,
        batch_size: int,
        sample_limit: int | None = None,
        progress_bar: bool | None = None,
    ) -> Self:
        """Return sizes into which any `batch_size - 1` graphs of the dataset fit.

        Args:
            dataset: A PyG dataset, or a list of graphs.
            batch_size: Graphs in a mini-batch, the padding graph included.
            sample_limit: Accepted; all graphs are looked at.
            progress_bar: None shows a bar for large datasets.

        Raises:
            ValueError: if `batch_size` leaves no room for a padding graph, or there is no graph.
        """
        _require_two_graphs("batch_size", batch_size)
        sizes = dataset_sizes(dataset, progress=progress_bar)

        def room(counts: Any, least: int) -> int:
            return max(int(counts.max()) * (batch_size - 1) + 1, least)

        nodes = {kind: room(counts, 2) for kind, counts in sizes.nodes.items()}
        edges = {kind: room(counts, 1) for kind, counts in sizes.edges.items()}
        if None in nodes:
            return cls(nodes[None], edges[None], batch_size)
        return cls(nodes, edges, batch_size)

    @classmethod
    def from_loader(cls, loader: Iterable[Any], sample_limit: int = 1000) -> Self:
        """Return sizes that fit the mini-batches that a loader yields.

        An estimate, as other mini-batches may be larger: combine it with trimming.

        Args:
            loader: Yields PyG's objects; it is started again until there are enough.
            sample_limit: How many mini-batches to look at.

        Raises:
            ValueError: if the loader yields nothing.
        """
        nodes: dict[Any, int] = {}
        edges: dict[Any, int] = {}
        num_graphs = 1
        for batch in itertools.islice(_repeated(loader), max(sample_limit, 1)):
            if isinstance(batch, HeteroData):
                _raise_to(nodes, {kind: batch[kind].num_nodes for kind in batch.node_types})
                _raise_to(edges, {kind: batch[kind].num_edges for kind in batch.edge_types})
            else:
                _raise_to(nodes, {None: batch.num_nodes})
                _raise_to(edges, {None: batch.num_edges})
            num_graphs = max(num_graphs, getattr(batch, "num_graphs", 1))
        if None in nodes:
            return cls(nodes[None] + 1, edges[None] + 1, num_graphs + 1)
        return cls(
            {kind: count + 1 for kind, count in nodes.items()},
            {kind: count + 1 for kind, count in edges.items()},
            num_graphs + 1,
        )

    def is_hetero(self) -> bool:
        """Return whether both sizes are given by type."""
        return isinstance(self.num_nodes, dict) and isinstance(self.num_edges, dict)

    def to_hetero(self, node_types: Iterable[Any], edge_types: Iterable[Any]) -> Self:
        """Give every type the size that is one number now; changes and returns this object."""
        if not isinstance(self.num_nodes, dict):
            self.num_nodes = dict.fromkeys(node_types, self.num_nodes)
        if not isinstance(self.num_edges, dict):
            self.num_edges = dict.fromkeys(edge_types, self.num_edges)
        return self

    @property
    def total_num_nodes(self) -> int:
        """Nodes of all types."""
        return _total(self.num_nodes)

    @property
    def total_num_edges(self) -> int:
        """Edges of all types."""
        return _total(self.num_edges)

    def to_spec(self) -> BatchSpec:
        """Return the sizes as Torchkiln's value."""
        return BatchSpec(self.num_nodes, self.num_edges, self.num_graphs)

    def to_pad_values(self) -> PadValues:
        """Return the pad values as Torchkiln's value."""
        return PadValues(self.node_pad_value, self.edge_pad_value, self.graph_pad_value)

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}("
            f"num_nodes={self.num_nodes} (At least one node reserved for padding), "
            f"num_edges={self.num_edges} (At least one edge reserved for padding), "
            f"num_graphs={self.num_graphs} (At least one graph reserved for padding), "
            f"node_pad_value={self.node_pad_value}, "
            f"edge_pad_value={self.edge_pad_value}, "
            f"graph_pad_value={self.graph_pad_value}, "
            f"pad_graph_defaults={self.pad_graph_defaults})"
        )


def _require_two_graphs(name: str, number: int) -> None:
    if number < 2:
        raise ValueError(
            f"{name} must be at least 2, for one real and one padding graph; got {number}"
        )


def _total(sizes: Sizes) -> int:
    return sum(sizes.values()) if isinstance(sizes, Mapping) else sizes


def _repeated(loader: Iterable[Any]) -> Iterable[Any]:
    while True:
        empty = True
        for batch in loader:
            empty = False
            yield batch
        if empty:
            raise ValueError("The loader yields no mini-batch, so that there are no sizes to read")


def _raise_to(largest: dict[Any, int], sizes: Mapping[Any, int]) -> None:
    for kind, size in sizes.items():
        largest[kind] = max(largest.get(kind, 0), size)
