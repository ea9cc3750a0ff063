"""`torch_scatter` as far as graphium uses it, on PyG's own `scatter`."""

from __future__ import annotations

from torch import Tensor
from torch_geometric.utils import scatter as _scatter


def scatter(
    src: Tensor,
    index: Tensor,
    dim: int = -1,
    out: Tensor | None = None,
    dim_size: int | None = None,
    reduce: str = "sum",
) -> Tensor:
    """Return what the package of that name returns."""
    if out is not None:
        raise NotImplementedError("torch_scatter.scatter(out=...) is not part of this stub")
    return _scatter(src, index, dim, dim_size, "sum" if reduce == "add" else reduce)


def scatter_add(
    src: Tensor,
    index: Tensor,
    dim: int = -1,
    out: Tensor | None = None,
    dim_size: int | None = None,
) -> Tensor:
    """Return sums by index."""
    return scatter(src, index, dim, out, dim_size, "sum")
