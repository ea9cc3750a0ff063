"""Molecules with their triplets of atoms k -> j -> i, batched by PyG and by Torchkiln."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData

from torchkiln.graphs import FixedSizeLoader, GraphStore

_BOND = ("atom", "bond", "atom")
_TRIPLET = ("message", "triplet", "message")


class TripletGraph(Data):
    """A graph whose `triplet_index` numbers its edges: PyG counts it up by these in a batch."""

    def __inc__(self, key: str, value: Any, *args: Any, **kwargs: Any) -> Any:
        if key == "triplet_index":
            return self.num_edges
        return super().__inc__(key, value, *args, **kwargs)


def with_triplets(graph: Data, pos: Tensor) -> TripletGraph:
    """Return what DimeNet++ needs of a molecule."""
    return TripletGraph(
        z=graph.z,
        pos=pos,
        edge_index=graph.edge_index,
        triplet_index=find_triplets(graph.edge_index),
        y=graph.y,
    )


def find_triplets(edge_index: Tensor) -> Tensor:
    """Return all pairs of edges k -> j and j -> i with k != i, in PyG's order, [2, num_triplets].

    Compares all edges of one molecule with each other, which are few.
    """
    source, target = edge_index
    follows = (source[:, None] == target) & (target[:, None] != source)
    ji, kj = follows.nonzero(as_tuple=True)
    return torch.stack([kj, ji])


class TripletLoader:
    """Packed batches with a fixed number of nodes, edges and triplets, each a dict of tensors.

    A `FixedSizeLoader` over graphs with types: what an edge carries is a node of type "message",
    too, and a triplet is an edge between two of these. So filler triplets lie on filler messages.
    """

    def __init__(self, graphs: list[TripletGraph], *, batch_size: int, shuffle: bool) -> None:
        store = GraphStore.from_dataset(map(_with_types, graphs), progress=False)
        self._loader = FixedSizeLoader(store, batch_size=batch_size, shuffle=shuffle)
        self.spec = self._loader.spec
        # Equal sizes get equal slots.
        assert self.spec.num_edges[_BOND] == self.spec.num_nodes["message"], "edge n is message n"

    def __len__(self) -> int:
        return len(self._loader)

    def __iter__(self) -> Iterator[dict[str, Tensor]]:
        for batch in self._loader:
            atoms = batch["atom"]
            yield {
                "z": atoms.z,
                "pos": atoms.pos,
                "edge_index": batch[_BOND].edge_index,
                "triplet_index": batch[_TRIPLET].edge_index,
                "batch": atoms.batch,
                "y": batch.y,
                "graph_mask": batch.graph_mask,
            }


def _with_types(graph: TripletGraph) -> HeteroData:
    return HeteroData(
        {
            "y": graph.y,
            "atom": {"z": graph.z, "pos": graph.pos},
            "message": {"num_nodes": graph.num_edges},
            _BOND: {"edge_index": graph.edge_index},
            _TRIPLET: {"edge_index": graph.triplet_index},
        }
    )
