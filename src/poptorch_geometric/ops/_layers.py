"""PyG's layers with static shapes; they have PyG's parameters."""

from __future__ import annotations

from typing import Any

import torch_geometric.nn as _pyg

from torchkiln.graphs.layers import _convolutions as _static
from torchkiln.graphs.layers import _norms as _static_norms


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
