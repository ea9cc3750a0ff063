"""PyG's layers on static shapes: what is switched on, and replaced, while a forward is recorded."""

from torchkiln.core import add_capture_context
from torchkiln.graphs.layers._batch_form import batch_form
from torchkiln.graphs.layers._capture import static_pyg
from torchkiln.graphs.layers._make_static import StaticReport, make_static
from torchkiln.graphs.layers._points import (
    drop_missing,
    knn,
    knn_graph,
    knn_interpolate,
    nearest,
    radius,
    radius_graph,
    route_missing,
    voxel_grid,
)
from torchkiln.graphs.layers._provide import provide_point_layers

__all__ = [
    "make_static",
    "StaticReport",
    "batch_form",
    "knn",
    "knn_graph",
    "knn_interpolate",
    "nearest",
    "radius",
    "radius_graph",
    "voxel_grid",
    "route_missing",
    "drop_missing",
    "provide_point_layers",
]

add_capture_context(static_pyg)
