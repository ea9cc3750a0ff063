"""Standing in for compiled packages: PyG's point operations without pyg-lib or torch_cluster."""

from __future__ import annotations

import contextlib
import functools
import importlib
import sys
from collections.abc import Callable
from typing import Any
from unittest import mock

from torchkiln.graphs.layers import _point_layers, _points, _spline
from torchkiln.graphs.layers._substitution import is_recording, replace_function

_provided = False


def provide_point_layers() -> bool:
    """Let PyG's `knn`, `radius`, `voxel_grid`, ... and layers on them work without pyg-lib.

    PyG refuses them, `DynamicEdgeConv`, `GravNetConv`, `XConv` and `SplineConv` if that compiled
    package (before PyG 2.8: torch_cluster and torch_spline_conv) is missing. Outside programs they
    then return what PyG would, without entries of -1; inside programs they are static in any case.
    This lasts for the rest of the process; a PyG that has it is left as it is. Returns whether
    anything was provided.
    """
    global _provided
    typing = importlib.import_module("torch_geometric.typing")
    if _provided or _has_searches(typing):
        return _provided
    pool = importlib.import_module("torch_geometric.nn.pool")
    unpool = importlib.import_module("torch_geometric.nn.unpool.knn_interpolate")
    for name in ("knn", "knn_graph", "radius", "radius_graph"):
        replace_function(getattr(pool, name), _sized_by_data(getattr(_points, name)))
    replace_function(pool.nearest, _points.nearest)
    replace_function(pool.voxel_grid, _points.voxel_grid)
    replace_function(unpool.knn_interpolate, _points.knn_interpolate)
    conv = importlib.import_module("torch_geometric.nn.conv")
    for kind, forward in (
        (conv.DynamicEdgeConv, _point_layers.dynamic_edge_conv),
        (conv.GravNetConv, _point_layers.gravnet_conv),
        (conv.XConv, _point_layers.x_conv),
    ):
        _permit(kind, typing)
        kind.forward = forward
    splines: Any = importlib.import_module("torch_geometric.nn.conv.spline_conv")
    splines.spline_basis = _spline.spline_basis
    splines.spline_weighting = _spline.spline_weighting
    _provided = True
    return True


def _sized_by_data(search: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(search)
    def found(*args: Any, **kwargs: Any) -> Any:
        table = search(*args, **kwargs)
        return table if is_recording() else _points.drop_missing(table)

    return found


def _has_searches(typing: Any) -> bool:
    """Tell whether PyG found the compiled package that it searches neighbours with."""
    flags = ("WITH_KNN", "WITH_TORCH_CLUSTER")  # of PyG 2.8, and of versions before
    return bool(next((getattr(typing, name) for name in flags if hasattr(typing, name)), True))


def _permit(kind: Any, typing: Any) -> None:
    """Let a layer be constructed without the compiled package."""
    if hasattr(typing, "WITH_KNN"):
        kind.__init__ = _permitted(kind.__init__, typing)
        return
    # Before PyG 2.8 constructors look whether an import at the top of their module succeeded.
    home = sys.modules[kind.__module__]
    for name in ("knn", "knn_graph"):
        if getattr(home, name, True) is None:
            setattr(home, name, getattr(_points, name))


def _permitted(initialize: Callable[..., None], typing: Any) -> Callable[..., None]:
    """Return a constructor that does not ask for pyg-lib."""

    @functools.wraps(initialize)
    def construct(self: Any, *args: Any, **kwargs: Any) -> None:
        with contextlib.ExitStack() as stack:
            stack.enter_context(mock.patch.object(typing, "WITH_KNN", True))
            initialize(self, *args, **kwargs)

    return construct
