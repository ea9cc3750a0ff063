"""The graph of nearest neighbours."""

from __future__ import annotations

from torch import Tensor

from poptorch_geometric.ops._sizes import drop_missing
from torchkiln.graphs import layers as _layers

__all__ = ["knn_graph"]


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
    return edges if loop else drop_missing(edges)
