"""Standing in for compiled packages: PyG's cluster and neighbour loaders without pyg-lib.

What is replaced is what PyG would refuse with an ImportError; a PyG that has METIS, or a compiled
sampler, keeps using it.
"""

from __future__ import annotations

import functools
import importlib
from typing import Any

from torchkiln.graphs.sampling._neighbors import NeighborSampler
from torchkiln.graphs.sampling._partition import partition_graph


@functools.cache
def provide_partition() -> None:
    """Let PyG's `ClusterData` use `partition_graph` where METIS is missing, in this process.

    Hook: the method that computes the partition. It is asked first; only its ImportError, which is
    how it says that no METIS was found, leads here.
    """
    from torch_geometric.loader import ClusterData

    compute = ClusterData._metis

    @functools.wraps(compute)
    def partition(self: Any, edge_index: Any, num_nodes: int) -> Any:
        try:
            return compute(self, edge_index, num_nodes)
        except ImportError:
            parts = partition_graph(edge_index, num_nodes, self.num_parts)
            return parts.to(edge_index.device)

    ClusterData._metis = partition


@functools.cache
def provide_sampler() -> None:
    """Let PyG's `NeighborLoader` and `LinkNeighborLoader` use `NeighborSampler`, in this process.

    Hook: the name of the sampler's class in the modules of the two loaders. Nothing changes where
    pyg-lib or torch-sparse is installed.
    """
    typing = importlib.import_module("torch_geometric.typing")
    if typing.WITH_PYG_LIB or typing.WITH_TORCH_SPARSE:
        return
    for module in ("neighbor_loader", "link_neighbor_loader"):
        loader = importlib.import_module(f"torch_geometric.loader.{module}")
        vars(loader)["NeighborSampler"] = make_sampler


def make_sampler(
    data: Any,
    num_neighbors: Any,
    *,
    share_memory: bool = False,
    directed: bool = True,
    subgraph_type: Any = "directional",
    **arguments: Any,
) -> NeighborSampler:
    """Return a `NeighborSampler` for the arguments of PyG's.

    `share_memory` has no meaning here: forked workers share the arrays, spawned ones get a copy.
    """
    if not directed:  # PyG's older word
        subgraph_type = "induced"
    return NeighborSampler(data, num_neighbors, subgraph_type=subgraph_type, **arguments)
