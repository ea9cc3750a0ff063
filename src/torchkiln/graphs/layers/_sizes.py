"""Sizes for pooling, aggregations and norms that were called without: those of the batch at hand.

Only models made static have them; elsewhere PyG's own check refuses, and the error names both ways.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor

from torchkiln.graphs.layers._batch_form import current_form


def sized_pool(original: Any, x: Tensor, batch: Tensor | None, size: int | None = None) -> Any:
    """`global_add_pool` and its kind, with the number of graphs."""
    if batch is not None and size is None:
        size = current_form().num_graphs
    return original(x, batch, size)


def sized_aggregation(
    original: Any,
    self: Any,
    x: Tensor,
    index: Tensor | None = None,
    ptr: Tensor | None = None,
    dim_size: int | None = None,
    dim: int = -2,
    **kwargs: Any,
) -> Any:
    """`Aggregation.__call__`, with the number of graphs and the largest graph."""
    form = current_form()
    if dim_size is None:
        dim_size = form.num_graphs if ptr is None else len(ptr) - 1
        if form.max_num_nodes is not None and _takes_max_num_elements(self):
            kwargs.setdefault("max_num_elements", form.max_num_nodes)
    return original(self, x, index, ptr, dim_size, dim, **kwargs)


def _takes_max_num_elements(aggregation: Any) -> bool:
    return "max_num_elements" in inspect.signature(type(aggregation).forward).parameters


def no_check(self: Any, index: Tensor | None) -> None:
    """`Aggregation.assert_sorted_index`: it reads values; batches are sorted by construction."""


def sized_mem_pooling(
    original: Any,
    self: Any,
    x: Tensor,
    batch: Tensor | None = None,
    mask: Tensor | None = None,
    max_num_nodes: int | None = None,
    batch_size: int | None = None,
) -> Any:
    """`MemPooling.forward`, with both sizes."""
    form = current_form()
    max_num_nodes = form.max_num_nodes if max_num_nodes is None else max_num_nodes
    batch_size = form.num_graphs if batch_size is None else batch_size
    return original(self, x, batch, mask, max_num_nodes, batch_size)


def dense_positions(batch: Tensor, num_graphs: int, width: int) -> Tensor:
    """Return where each node stands in a flattened [num_graphs, width] table.

    Nodes of filler graphs that are larger than `width` share its last place.
    """
    counts = batch.new_zeros(num_graphs).index_add(0, batch, torch.ones_like(batch))
    begins = counts.cumsum(0) - counts
    offset = torch.arange(len(batch), device=batch.device) - begins[batch]
    return batch * width + offset.clamp(max=width - 1)


def dense_batch(
    original: Any,
    x: Tensor,
    batch: Tensor | None = None,
    fill_value: Any = 0.0,
    max_num_nodes: int | None = None,
    batch_size: int | None = None,
) -> Any:
    """`to_dense_batch` in operations that Inductor has.

    PyG's own repeats a tensor without dimensions, for which torch 2.13 cannot generate code.
    """
    if batch is None or max_num_nodes is None or batch_size is None:
        return original(x, batch, fill_value, max_num_nodes, batch_size)
    counts = batch.new_zeros(batch_size).index_add(0, batch, torch.ones_like(batch))
    offset = torch.arange(len(batch), device=batch.device) - (counts.cumsum(0) - counts)[batch]
    # Nodes beyond the width go to a place that is cut off.
    places = batch_size * max_num_nodes
    index = torch.where(offset < max_num_nodes, batch * max_num_nodes + offset, places)
    table = (x.new_zeros(places + 1, *x.shape[1:]) + fill_value).to(x.dtype)
    dense = table.index_put((index,), x)[:places]
    width = torch.arange(max_num_nodes, device=batch.device)
    mask = width[None, :] < counts[:, None]
    return dense.view(batch_size, max_num_nodes, *x.shape[1:]), mask


def quantile_aggregation(
    original: Any,
    self: Any,
    x: Tensor,
    index: Tensor | None = None,
    ptr: Tensor | None = None,
    dim_size: int | None = None,
    dim: int = -2,
) -> Any:
    """`QuantileAggregation.forward` (and the median) with a count of fixed size."""
    dim = dim + x.dim() if dim < 0 else dim
    if index is None or dim_size is None:
        return original(self, x, index, ptr, dim_size, dim)
    rows = x.movedim(dim, 0)
    count = index.new_zeros(dim_size).index_add(0, index, torch.ones_like(index))
    begin = (count.cumsum(0) - count).clamp(max=len(rows) - 1)
    # By value first, then (stably) by group: each group is sorted in one stretch.
    by_value, order = rows.sort(dim=0)
    groups = index.view(-1, *[1] * (rows.dim() - 1)).expand_as(rows).gather(0, order)
    values = by_value.gather(0, groups.sort(dim=0, stable=True).indices)
    # PyG's order: all quantiles of a group beside each other.
    point = (self.q.view(1, -1) * (count - 1).view(-1, 1) + begin.view(-1, 1)).reshape(-1)
    point = point.clamp(min=0)
    low, high = values[point.floor().long()], values[point.ceil().long()]
    shape = (-1, *[1] * (rows.dim() - 1))
    if self.interpolation == "lower":
        out = low
    elif self.interpolation == "higher":
        out = high
    elif self.interpolation == "nearest":
        out = values[point.round().long()]
    elif self.interpolation == "linear":
        out = low + (high - low) * point.frac().view(shape)
    else:
        out = 0.5 * low + 0.5 * high
    quantiles = self.q.numel()
    empty = (count == 0)[:, None].expand(dim_size, quantiles).reshape(shape)
    out = out.masked_fill(empty, self.fill_value).movedim(0, dim)
    if quantiles > 1:
        shape_out = (*out.shape[:dim], dim_size, -1, *out.shape[dim + 2 :])
        out = out.reshape(shape_out)
    return out
