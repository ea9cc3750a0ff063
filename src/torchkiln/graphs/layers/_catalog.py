"""Everything of PyG that is replaced while a program records its forward."""

from __future__ import annotations

import importlib
import sys
import types
from typing import Any

from torchkiln.graphs.layers import (
    _convolutions,
    _norms,
    _point_layers,
    _points,
    _self_loops,
    _sizes,
    _spline,
)
from torchkiln.graphs.layers._substitution import Substitute

_CONVOLUTIONS: dict[str, tuple[str, Any, bool]] = {
    "ClusterGCNConv": ("forward", _convolutions.cluster_gcn_conv, True),
    "MFConv": ("forward", _convolutions.mf_conv, True),
    "ChebConv": ("__norm__", _convolutions.cheb_norm, True),
    "RGCNConv": ("forward", _convolutions.rgcn_conv, True),
    "FiLMConv": ("forward", _convolutions.film_conv, True),
    "RGATConv": ("message", _convolutions.rgat_message, True),
    "GPSConv": ("forward", _convolutions.gps_conv, True),
    "SplineConv": ("message", _spline.spline_message, False),
    "EdgeConv": ("forward", _point_layers.edge_conv, True),
    "DynamicEdgeConv": ("forward", _point_layers.dynamic_edge_conv, False),
    "GravNetConv": ("forward", _point_layers.gravnet_conv, False),
    "XConv": ("forward", _point_layers.x_conv, False),
}


def substitutes() -> tuple[Substitute, ...]:
    """Return the substitutes for the PyG that is installed."""
    return (*_functions(), *_classes())


def _functions() -> list[Substitute]:
    pool = importlib.import_module("torch_geometric.nn.pool")
    glob = importlib.import_module("torch_geometric.nn.pool.glob")
    voxel = importlib.import_module("torch_geometric.nn.pool.voxel_grid")
    unpool = importlib.import_module("torch_geometric.nn.unpool.knn_interpolate")
    dense = importlib.import_module("torch_geometric.utils._to_dense_batch")
    gcn = importlib.import_module("torch_geometric.nn.conv.gcn_conv")
    han = importlib.import_module("torch_geometric.nn.conv.han_conv")
    searches = ("knn", "knn_graph", "radius", "radius_graph", "nearest")
    pools = ("global_add_pool", "global_mean_pool", "global_max_pool")
    return [
        *(Substitute(pool, name, getattr(_points, name)) for name in searches),
        *_cluster_functions(searches),
        *(Substitute(glob, name, _sizes.sized_pool, wraps=True) for name in pools),
        Substitute(voxel, "voxel_grid", _points.voxel_grid),
        Substitute(unpool, "knn_interpolate", _points.knn_interpolate),
        Substitute(dense, "to_dense_batch", _sizes.dense_batch, wraps=True),
        Substitute(gcn, "gcn_norm", _self_loops.static_gcn_norm, wraps=True),
        Substitute(han, "group", _convolutions.han_group, wraps=True),
    ]


def _cluster_functions(names: tuple[str, ...]) -> list[Substitute]:
    """Return substitutes for torch_cluster's own functions, if a program's author loaded them."""
    cluster = sys.modules.get("torch_cluster")
    return [
        Substitute(cluster, name, getattr(_points, name))
        for name in names
        if isinstance(getattr(cluster, name, None), types.FunctionType)
    ]


def _classes() -> list[Substitute]:
    nn = importlib.import_module("torch_geometric.nn")
    found = [
        Substitute(getattr(nn, kind), method, static, wraps)
        for kind, (method, static, wraps) in _CONVOLUTIONS.items()
    ]
    found += [
        Substitute(getattr(nn, kind), "forward", _norms.sized_norm, wraps=True)
        for kind in _norms.SIZED_NORMS
    ]
    schnet = importlib.import_module("torch_geometric.nn.models.schnet")
    return [
        *found,
        Substitute(schnet.CFConv, "forward", _point_layers.cf_conv, wraps=True),
        Substitute(nn.HeteroLinear, "forward", _convolutions.hetero_linear, wraps=True),
        Substitute(nn.InstanceNorm, "forward", _norms.instance_norm, wraps=True),
        Substitute(nn.HeteroBatchNorm, "forward", _norms.hetero_batch_norm, wraps=True),
        Substitute(nn.MemPooling, "forward", _sizes.sized_mem_pooling, wraps=True),
        Substitute(nn.QuantileAggregation, "forward", _sizes.quantile_aggregation, wraps=True),
        Substitute(nn.Aggregation, "__call__", _sizes.sized_aggregation, wraps=True),
        Substitute(nn.Aggregation, "assert_sorted_index", _sizes.no_check),
    ]
