"""Everything of PyG that is replaced while a program records its forward."""

from __future__ import annotations

import importlib
import sys
import types
from collections.abc import Callable, Iterator
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


_SEARCHES = ("knn", "knn_graph", "radius", "radius_graph", "nearest")
_POOLS = ("global_add_pool", "global_mean_pool", "global_max_pool")


def substitutes() -> tuple[Substitute, ...]:
    """Return the substitutes for the PyG that is installed.

    What a version of PyG does not have, or calls otherwise, is left out: programs that do not use
    it are recorded all the same.
    """
    return (*_functions(), *_cluster_functions(), *_classes())


def _functions() -> Iterator[Substitute]:
    for name in _SEARCHES:
        yield from _found("nn.pool", name, getattr(_points, name))
    for name in _POOLS:
        yield from _found("nn.pool.glob", name, _sizes.sized_pool, wraps=True)
    yield from _found("nn.pool.voxel_grid", "voxel_grid", _points.voxel_grid)
    yield from _found("nn.unpool.knn_interpolate", "knn_interpolate", _points.knn_interpolate)
    yield from _found("utils._to_dense_batch", "to_dense_batch", _sizes.dense_batch, wraps=True)
    yield from _found("nn.conv.gcn_conv", "gcn_norm", _self_loops.static_gcn_norm, wraps=True)
    yield from _found("nn.conv.han_conv", "group", _convolutions.han_group, wraps=True)


def _cluster_functions() -> list[Substitute]:
    """Return substitutes for torch_cluster's own functions, if a program's author loaded them."""
    cluster = sys.modules.get("torch_cluster")
    return [
        Substitute(cluster, name, getattr(_points, name))
        for name in _SEARCHES
        if isinstance(getattr(cluster, name, None), types.FunctionType)
    ]


def _classes() -> Iterator[Substitute]:
    for kind, (method, static, wraps) in _CONVOLUTIONS.items():
        yield from _found("nn", f"{kind}.{method}", static, wraps=wraps)
    for kind in _norms.SIZED_NORMS:
        yield from _found("nn", f"{kind}.forward", _norms.sized_norm, wraps=True)
    for name, static in (
        ("HeteroLinear.forward", _convolutions.hetero_linear),
        ("InstanceNorm.forward", _norms.instance_norm),
        ("HeteroBatchNorm.forward", _norms.hetero_batch_norm),
        ("MemPooling.forward", _sizes.sized_mem_pooling),
        ("QuantileAggregation.forward", _sizes.quantile_aggregation),
        ("Aggregation.__call__", _sizes.sized_aggregation),
    ):
        yield from _found("nn", name, static, wraps=True)
    yield from _found("nn", "Aggregation.assert_sorted_index", _sizes.no_check)
    yield from _found("nn.models.schnet", "CFConv.forward", _point_layers.cf_conv, wraps=True)


def _found(
    module: str, name: str, static: Callable[..., Any], *, wraps: bool = False
) -> Iterator[Substitute]:
    """Yield the substitute for a function or `Class.method` of PyG, if the module has it."""
    full = f"torch_geometric.{module}"
    try:
        owner: Any = importlib.import_module(full)
    except ModuleNotFoundError as error:
        # A package that PyG itself needs and that is missing is the user's to know about.
        if error.name is None or not f"{full}.".startswith(f"{error.name}."):
            raise
        return
    *kind, attribute = name.split(".")
    for part in kind:
        owner = getattr(owner, part, None)
    if owner is not None and attribute in vars(owner):
        yield Substitute(owner, attribute, static, wraps)
