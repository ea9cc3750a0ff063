"""Fixed-size batches of graphs: spec, store, collation, loaders, static layers.

What samples large graphs or replaces PyG's layers is imported when first used: it needs PyG, and
importing that takes longer than all the rest of a start. Programs that use PyG's layers find
`layers` by themselves (`core`'s capture contexts).
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from torchkiln.graphs import _loss_review as _loss_review  # registers itself
from torchkiln.graphs._errors import GraphError
from torchkiln.graphs._spec import BatchSpec, PadValues
from torchkiln.graphs.batches._collate import collate, collate_combined
from torchkiln.graphs.batches._pad import MaskNames, pad_batch
from torchkiln.graphs.loaders._loader import FixedSizeLoader
from torchkiln.graphs.store._store import GraphStore

if TYPE_CHECKING:
    from torchkiln.graphs.layers import (
        batch_form,
        make_static,
        provide_point_layers,
        route_missing,
    )
    from torchkiln.graphs.loaders._cluster_loader import FixedSizeClusterLoader
    from torchkiln.graphs.loaders._neighbor_loader import FixedSizeNeighborLoader
    from torchkiln.graphs.sampling._clusters import Clusters
    from torchkiln.graphs.sampling._neighbors import NeighborSampler
    from torchkiln.graphs.sampling._partition import partition_graph
    from torchkiln.ops import (
        masked_binary_cross_entropy_with_logits,
        masked_cross_entropy,
        masked_huber_loss,
        masked_l1_loss,
        masked_mean,
        masked_mse_loss,
        masked_smooth_l1_loss,
    )

_HOME_OF = {
    "Clusters": "torchkiln.graphs.sampling._clusters",
    "FixedSizeClusterLoader": "torchkiln.graphs.loaders._cluster_loader",
    "FixedSizeNeighborLoader": "torchkiln.graphs.loaders._neighbor_loader",
    "NeighborSampler": "torchkiln.graphs.sampling._neighbors",
    "batch_form": "torchkiln.graphs.layers",
    "make_static": "torchkiln.graphs.layers",
    "masked_binary_cross_entropy_with_logits": "torchkiln.ops",
    "masked_cross_entropy": "torchkiln.ops",
    "masked_huber_loss": "torchkiln.ops",
    "masked_l1_loss": "torchkiln.ops",
    "masked_mean": "torchkiln.ops",
    "masked_mse_loss": "torchkiln.ops",
    "masked_smooth_l1_loss": "torchkiln.ops",
    "partition_graph": "torchkiln.graphs.sampling._partition",
    "provide_point_layers": "torchkiln.graphs.layers",
    "route_missing": "torchkiln.graphs.layers",
}

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
    # losses over real rows
    "masked_binary_cross_entropy_with_logits",
    "masked_cross_entropy",
    "masked_huber_loss",
    "masked_l1_loss",
    "masked_mean",
    "masked_mse_loss",
    "masked_smooth_l1_loss",
]


def __getattr__(name: str) -> Any:
    if name in _HOME_OF:
        return getattr(importlib.import_module(_HOME_OF[name]), name)
    raise AttributeError(f"module 'torchkiln.graphs' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
