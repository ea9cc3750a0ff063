"""Fixed-size batches of graphs: spec, store, collation, loaders, static layers."""

from torchkiln.graphs._errors import GraphError
from torchkiln.graphs._spec import BatchSpec, PadValues
from torchkiln.graphs.batches._collate import collate, collate_combined
from torchkiln.graphs.batches._pad import MaskNames, pad_batch
from torchkiln.graphs.layers import (
    batch_form,
    make_static,
    provide_point_layers,
    route_missing,
)
from torchkiln.graphs.loaders._cluster_loader import FixedSizeClusterLoader
from torchkiln.graphs.loaders._loader import FixedSizeLoader
from torchkiln.graphs.loaders._neighbor_loader import FixedSizeNeighborLoader
from torchkiln.graphs.sampling._clusters import Clusters
from torchkiln.graphs.sampling._neighbors import NeighborSampler
from torchkiln.graphs.sampling._partition import partition_graph
from torchkiln.graphs.store._store import GraphStore

__all__ = [
    # shapes
    "BatchSpec",
    "MaskNames",
    "PadValues",
    # graphs and batches of them
    "GraphError",
    "GraphStore",
    "collate",
    "collate_combined",
    "pad_batch",
    # many small graphs, or samples of a large one
    "Clusters",
    "FixedSizeClusterLoader",
    "FixedSizeLoader",
    "FixedSizeNeighborLoader",
    "NeighborSampler",
    "partition_graph",
    # models
    "batch_form",
    "make_static",
    "provide_point_layers",
    "route_missing",
]
