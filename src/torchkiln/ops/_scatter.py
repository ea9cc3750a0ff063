"""Sums and extremes of rows by index, for programs: no atomics, the same bits for any threads.

Programs get these operators from a pass over their recorded graph (`_aggregation.py` in
`runtime/passes`), where derivatives are recorded already; so they have none of their own. Outside
programs use `torch.index_add`, or `segment_sum` for rows in order.
"""

from __future__ import annotations

import torch
from torch import Tensor

from torchkiln.ops._define import define_operator
from torchkiln.ops._native import load_native

# The C++ file with the kernels.
SCATTER_HELPER = "_scatter"


def serves_scatter(x: Tensor) -> bool:
    """Whether the native kernels take tensors like `x`."""
    return x.device.type == "cpu" and x.dtype in (torch.float32, torch.float64)


def has_scatter_kernels() -> bool:
    """Whether there are native kernels; building them may take seconds."""
    return load_native(SCATTER_HELPER) is not None


@define_operator("scatter_sum", native=SCATTER_HELPER)
def scatter_sum(
    x: Tensor,
    index: Tensor,
    num_rows: int,
    source: Tensor | None = None,
    weight: Tensor | None = None,
    base: Tensor | None = None,
) -> Tensor:
    """Return `base` (zeros) with `weight[e] * x[source[e]]` added to row `index[e]`, in that order.

    Args:
        x: [num_sources, ...].
        index: Where entries go, int64, [num_entries].
        num_rows: Rows of the result.
        source: Which row of `x` an entry takes, int64, [num_entries]; None: that of its number.
        weight: Begins with num_entries and broadcasts with `x[source]` by trailing axes of 1.
        base: What is added to, [num_rows, ...].

    Raises:
        RuntimeError: if an index is out of range; checked on the CPU.
    """
    entries = x if source is None else x.index_select(0, source)
    entries = entries if weight is None else entries * weight
    return _start(x, num_rows, base).index_add_(0, index, entries)


@define_operator("scatter_extreme", native=SCATTER_HELPER)
def scatter_extreme(
    x: Tensor, index: Tensor, num_rows: int, largest: bool, base: Tensor | None, include_base: bool
) -> Tensor:
    """Return the largest (smallest) entry for each row; rows without entries are `base` (zeros).

    Args:
        x: One row each, [num_entries, ...].
        index: Where rows go, int64, [num_entries].
        num_rows: Rows of the result.
        largest: Largest, or smallest. NaN counts as both.
        base: Values of rows that get no entry, [num_rows, ...].
        include_base: Whether `base` takes part where there are entries, too.

    Raises:
        RuntimeError: if an index is out of range; checked on the CPU.
    """
    places = index.view(-1, *[1] * (x.dim() - 1)).expand_as(x)
    how = "amax" if largest else "amin"
    out = _start(x, num_rows, base)
    return out.scatter_reduce_(0, places, x, how, include_self=include_base)


def _start(x: Tensor, num_rows: int, base: Tensor | None) -> Tensor:
    if base is not None:
        return base.clone(memory_format=torch.contiguous_format)
    return x.new_zeros((num_rows, *x.shape[1:]))


@torch.library.register_fake("torchkiln::scatter_sum")
def _(
    x: Tensor,
    index: Tensor,
    num_rows: int,
    source: Tensor | None = None,
    weight: Tensor | None = None,
    base: Tensor | None = None,
) -> Tensor:
    return x.new_empty((num_rows, *x.shape[1:]))


@torch.library.register_fake("torchkiln::scatter_extreme")
def _(
    x: Tensor, index: Tensor, num_rows: int, largest: bool, base: Tensor | None, include_base: bool
) -> Tensor:
    return x.new_empty((num_rows, *x.shape[1:]))
