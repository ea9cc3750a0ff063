"""Neighbour search with result sizes that do not depend on the points.

Every search fills a table of fixed width: what it cannot fill is -1 in both rows. An entry of -1 is
no index: mask it (`edge_index[0] >= 0`), or send it to a filler node with `route_missing`. PyG's
layers that search for neighbours themselves mask it here (`_point_layers.py`).

Of equally distant points those with the smallest indices are chosen, in ascending order
(`_nearest.py`).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from torchkiln.core import OptionsError
from torchkiln.graphs.layers._missing_watch import may_miss
from torchkiln.graphs.layers._nearest import first_smallest, squared_distances

MISSING = -1


def knn(
    x: Tensor,
    y: Tensor,
    k: int,
    batch_x: Tensor | None = None,
    batch_y: Tensor | None = None,
    cosine: bool = False,
    num_workers: int = 1,
    batch_size: int | None = None,
) -> Tensor:
    """Return the `k` rows of `x` nearest to each row of `y`, int64 [2, len(y) * k].

    Row 0 holds indices of `y`, each repeated `k` times, row 1 indices of `x`, nearest first; both
    are -1 where an example has fewer than `k` rows. The table of all distances is materialised:
    [len(y), len(x)]. `num_workers` and `batch_size` are accepted for PyG's signature and not used.

    Raises:
        OptionsError: if `k` is more than all rows of `x`, or the widths differ.
    """
    x, y = _as_points(x), _as_points(y)
    _check(x, y, k)
    distance, foreign = _distances(x, y, batch_x, batch_y, cosine)
    return _table(distance, foreign, k)


def radius(
    x: Tensor,
    y: Tensor,
    r: float,
    batch_x: Tensor | None = None,
    batch_y: Tensor | None = None,
    max_num_neighbors: int | None = 32,
    num_workers: int = 1,
    batch_size: int | None = None,
) -> Tensor:
    """Return the rows of `x` within `r` of each row of `y`, nearest first, as `knn` does.

    The width of the table is `min(len(x), max_num_neighbors)`; where more rows are within `r`, the
    nearest are kept (PyG keeps the first ones it finds).
    """
    x, y = _as_points(x), _as_points(y)
    width = len(x) if max_num_neighbors is None else min(len(x), max_num_neighbors)
    _check(x, y, width)
    distance, foreign = _distances(x, y, batch_x, batch_y)
    return _table(distance, foreign | (distance > r * r), width)


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
    """Return edges from the `k` nearest rows to each row, int64 [2, len(x) * k]; see `knn`."""
    x = _as_points(x)
    _check(x, x, k)
    distance, foreign = _distances(x, x, batch, batch, cosine)
    return may_miss(_directed(_table(distance, _without_loops(foreign, loop), k), flow))


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
    """Return edges between rows within `r` of each other; see `radius`."""
    x = _as_points(x)
    width = len(x) if max_num_neighbors is None else min(len(x), max_num_neighbors)
    distance, foreign = _distances(x, x, batch, batch)
    far = _without_loops(foreign, loop) | (distance > r * r)
    return may_miss(_directed(_table(distance, far, width), flow))


def nearest(
    x: Tensor, y: Tensor, batch_x: Tensor | None = None, batch_y: Tensor | None = None
) -> Tensor:
    """Return, for each row of `x`, the nearest row of `y` of its example (-1 if it has none)."""
    return knn(y, x, 1, batch_y, batch_x)[1]


def knn_interpolate(
    x: Tensor,
    pos_x: Tensor,
    pos_y: Tensor,
    batch_x: Tensor | None = None,
    batch_y: Tensor | None = None,
    k: int = 3,
    num_workers: int = 1,
) -> Tensor:
    """Return features at `pos_y`, interpolated from the `k` nearest of `pos_x`: [len(pos_y), F].

    Weights are inverse squared distances. An example with fewer than `k` points uses those that it
    has; one without any gets zeros.
    """
    k = min(k, len(pos_x))
    with torch.no_grad():
        index = knn(pos_x, pos_y, k, batch_x, batch_y)[1]
        found = (index != MISSING).view(-1, k, 1)
        index = index.clamp(min=0)
        difference = _as_points(pos_x)[index].view(len(pos_y), k, -1) - _as_points(pos_y)[:, None]
        weight = 1.0 / difference.square().sum(dim=-1, keepdim=True).clamp(min=1e-16)
        weight = torch.where(found, weight, 0.0)
        total = weight.sum(dim=1).clamp(min=torch.finfo(weight.dtype).tiny)
    # A missing neighbour's features may be anything, so they are switched off, too.
    features = torch.where(found, x[index].view(len(pos_y), k, -1), 0.0)
    return (features * weight).sum(dim=1) / total


def voxel_grid(
    pos: Tensor,
    size: Any,
    batch: Tensor | None = None,
    start: Any = None,
    end: Any = None,
) -> Tensor:
    """Return the number of the grid cell of each point, int64 [len(pos)].

    Without `start` and `end` the grid spans all points, filler included: give them for batches
    with filler.
    """
    pos = _as_points(pos)
    examples = batch if batch is not None else pos.new_zeros(len(pos), dtype=torch.long)
    low = pos.amin(dim=0) if start is None else _per_axis(start, pos)
    high = pos.amax(dim=0) if end is None else _per_axis(end, pos)
    edge = _per_axis(size, pos)
    cell = ((pos - low) / edge).long()
    count = ((high - low) / edge).long() + 1
    strides = torch.cat([count.new_ones(1), count.cumprod(0)])
    return (cell * strides[:-1]).sum(dim=1) + examples * strides[-1]


def _per_axis(value: Any, pos: Tensor) -> Tensor:
    given = torch.as_tensor(value, dtype=pos.dtype, device=pos.device).reshape(-1)
    return given.expand(pos.shape[1]) if len(given) == 1 else given


def route_missing(edge_index: Tensor, node: int) -> Tensor:
    """Return `edge_index` with entries of -1 as self-loops on `node`.

    With the last node of a fixed-size batch, which is always filler, missing neighbours are inert.
    """
    return torch.where(edge_index < 0, node, edge_index)


def drop_missing(edge_index: Tensor) -> Tensor:
    """Return `edge_index` without entries of -1: PyG's form. Its size depends on data."""
    return edge_index[:, edge_index[0] >= 0]


def _as_points(x: Tensor) -> Tensor:
    x = x.view(-1, 1) if x.dim() == 1 else x
    return x if x.is_floating_point() else x.to(torch.get_default_dtype())


def _check(x: Tensor, y: Tensor, k: int) -> None:
    if x.dim() != 2 or y.dim() != 2 or x.shape[1] != y.shape[1]:
        raise OptionsError(
            f"points must be [n, d] with the same d, got {list(x.shape)} and {list(y.shape)}"
        )
    if not 1 <= k <= len(x):
        raise OptionsError(f"cannot find {k} neighbours among {len(x)} points; choose a smaller k")


def _distances(
    x: Tensor, y: Tensor, batch_x: Tensor | None, batch_y: Tensor | None, cosine: bool = False
) -> tuple[Tensor, Tensor]:
    """Return all distances [len(y), len(x)], and which pairs are of different examples.

    They are squared ones, or those of cosines.
    """
    with torch.no_grad():
        if cosine:
            unit = torch.nn.functional.normalize
            distance = 1.0 - unit(y, dim=-1) @ unit(x, dim=-1).T
        else:
            distance = squared_distances(y, x)
        if batch_x is None and batch_y is None:
            return distance, torch.zeros_like(distance, dtype=torch.bool)
        own_x = batch_x if batch_x is not None else x.new_zeros(len(x), dtype=torch.long)
        own_y = batch_y if batch_y is not None else y.new_zeros(len(y), dtype=torch.long)
        return distance, own_y[:, None] != own_x[None, :]


def _without_loops(foreign: Tensor, loop: bool) -> Tensor:
    if loop:
        return foreign
    return foreign | torch.eye(len(foreign), dtype=torch.bool, device=foreign.device)


def _table(distance: Tensor, excluded: Tensor, width: int) -> Tensor:
    """Return the nearest `width` pairs of each row that are not excluded, -1 for the rest."""
    order = distance.masked_fill(excluded, float("inf"))
    index = first_smallest(order, width)
    missing = excluded.gather(1, index)
    row = torch.arange(len(distance), device=index.device)[:, None].expand_as(index)
    return torch.stack([row, index]).masked_fill(missing, MISSING).view(2, -1)


def _directed(pairs: Tensor, flow: str) -> Tensor:
    assert flow in ("source_to_target", "target_to_source"), f"unknown flow {flow!r}"
    return pairs.flip(0) if flow == "source_to_target" else pairs
