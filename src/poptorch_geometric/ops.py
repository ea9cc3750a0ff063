"""The operations that programs use in place of PyG's, by their original names.

Searches mark missing neighbours by -1 in both rows (spec section 10.1); graphs without loops have
such entries in programs only, where shapes are static. The layers are PyG's with the same
parameters, so their weights can be loaded into each other.
"""

from __future__ import annotations

from typing import Any

import torch_geometric.nn as _pyg
from torch import Tensor

from poptorch import isRunningOnIpu
from torchkiln.graphs import layers as _layers
from torchkiln.graphs.layers import _convolutions as _static
from torchkiln.graphs.layers import _norms as _static_norms
from torchkiln.graphs.layers import knn, knn_interpolate, radius

__all__ = [
    "Aggregation",
    "ClusterGCNConv",
    "HeteroLinear",
    "InstanceNorm",
    "MFConv",
    "knn",
    "knn_graph",
    "knn_interpolate",
    "radius",
    "radius_graph",
]


def knn_graph(
    x: Tensor,
    k: int,
    batch: Tensor | None = None,
    loop: bool = False,
    flow: str = "source_to_target",
    cosine: bool = False,
    num_workers: int = 1,
    batch_size: int | None = None,
) -> Tensor:
    """Return edges to the `k` nearest points of the same example, by increasing distance."""
    edges = _layers.knn_graph(x, k, batch, loop, flow, cosine, num_workers, batch_size)
    return edges if loop else _drop_missing(edges)


def radius_graph(
    x: Tensor,
    r: float,
    batch: Tensor | None = None,
    loop: bool = False,
    max_num_neighbors: int | None = 32,
    flow: str = "source_to_target",
    num_workers: int = 1,
    batch_size: int | None = None,
) -> Tensor:
    """Return edges to the nearest points of the same example within the distance `r`."""
    edges = _layers.radius_graph(
        x, r, batch, loop, max_num_neighbors, flow, num_workers, batch_size
    )
    return edges if loop else _drop_missing(edges)


def _drop_missing(edges: Tensor) -> Tensor:
    """Return edges without those that lead nowhere, which plain PyG cannot use."""
    return edges if isRunningOnIpu() else _layers.drop_missing(edges)


class Aggregation(_pyg.Aggregation):
    """PyG's base class, which trusts that indices are sorted instead of reading them."""

    def assert_sorted_index(self, index: Any) -> None:
        pass


class ClusterGCNConv(_pyg.ClusterGCNConv):
    # PyG reads the types of `propagate` from a comment in the class itself.
    def forward(self, x: Any, edge_index: Any) -> Any:
        # propagate_type: (x: Tensor, edge_weight: OptTensor)
        return _static.cluster_gcn_conv(_pyg.ClusterGCNConv.forward, self, x, edge_index)


class MFConv(_pyg.MFConv):
    def forward(self, x: Any, edge_index: Any, size: Any = None) -> Any:
        # propagate_type: (x: OptPairTensor)
        return _static.mf_conv(_pyg.MFConv.forward, self, x, edge_index, size)


class HeteroLinear(_pyg.HeteroLinear):
    def forward(self, x: Any, type_vec: Any) -> Any:
        return _static.hetero_linear(_pyg.HeteroLinear.forward, self, x, type_vec)


class InstanceNorm(_pyg.InstanceNorm):
    def forward(self, x: Any, batch: Any = None, batch_size: Any = None) -> Any:
        return _static_norms.instance_norm(_pyg.InstanceNorm.forward, self, x, batch, batch_size)
