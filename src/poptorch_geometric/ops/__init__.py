"""The operations that programs use in place of PyG's, by their original names.

Searches mark missing neighbours by -1 in both rows (spec section 10.1); graphs without loops have
such entries in programs only, where shapes are static. The layers are PyG's with the same
parameters, so their weights can be loaded into each other.

As in the original, `ops.knn` is the function, and `from poptorch_geometric.ops.knn import knn`
finds it in the module of that name.
"""

from poptorch_geometric.ops._layers import (
    Aggregation,
    ClusterGCNConv,
    HeteroLinear,
    InstanceNorm,
    MFConv,
)
from poptorch_geometric.ops.knn import knn
from poptorch_geometric.ops.knn_graph import knn_graph
from poptorch_geometric.ops.knn_interpolate import knn_interpolate
from poptorch_geometric.ops.radius import radius, radius_graph

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
