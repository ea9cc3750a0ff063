"""The neighbours of points within a distance, and their graph."""

from __future__ import annotations

from torch import Tensor

from poptorch_geometric.ops._sizes import drop_missing
from torchkiln.graphs import layers as _layers
from torchkiln.graphs.layers import radius

__all__ = ["radius", "radius_graph"]


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
    return edges if loop else drop_missing(edges)
