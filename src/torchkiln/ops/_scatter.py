"""Sums and extremes of rows by index, for programs: no atomics, the same bits for any threads.

Programs get these operators from a pass over their recorded graph (`runtime/_aggregation.py`),
where derivatives are recorded already; so they have none of their own. Outside programs use
`torch.index_add`, or `segment_sum` for rows in order.
"""

from __future__ import annotations

import ctypes
import math
from typing import Any

import torch
from torch import Tensor

from torchkiln.core import ArgumentError
from torchkiln.ops._define import define_operator
from torchkiln.ops._kernels import find_kernel, num_threads

# Every thread reads the whole index, which takes about as long as adding so many numbers a row.
_MIN_WIDTH_PER_THREAD = 4


class _Rows(ctypes.Structure):
    """`struct Rows` of _scatter.cpp."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("target", "source")),
        *((name, ctypes.c_int64) for name in ("num_entries", "num_targets", "num_sources")),
        *((name, ctypes.c_int64) for name in ("width", "stride", "has_base", "threads")),
    ]


def can_scatter(x: Tensor) -> bool:
    """Whether there are native kernels for tensors like `x`; building them may take seconds."""
    return _find("sum", x) is not None


def _find(name: str, x: Tensor) -> Any:
    return find_kernel("_scatter", f"scatter_{name}", x)


@define_operator("scatter_sum")
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
        ArgumentError: if an index is out of range; checked on the CPU.
    """
    out = _start(x, num_rows, base)
    kernel = _find("sum", x)
    if kernel is None:
        entries = x if source is None else x.index_select(0, source)
        return out.index_add_(0, index, entries if weight is None else entries * weight)
    # Held until the kernel is done: it sees addresses only.
    x, index = _with_dense_rows(x), index.contiguous()
    source = None if source is None else source.contiguous()
    weight = None if weight is None else weight.contiguous()
    groups = 0 if weight is None else math.prod(weight.shape[1:])
    rows = _rows(x, index, source, num_rows, base)
    pointers = [ctypes.c_void_p(_address(tensor)) for tensor in (x, weight, out)]
    if not kernel(ctypes.byref(rows), *pointers[:2], ctypes.c_int64(groups), pointers[2]):
        _complain(index, num_rows, source, len(x))
    return out


@define_operator("scatter_extreme")
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
        ArgumentError: if an index is out of range; checked on the CPU.
    """
    out = _start(x, num_rows, base)
    name = "max" if largest else "min"
    kernel = _find(name, x)
    if kernel is None:
        places = index.view(-1, *[1] * (x.dim() - 1)).expand_as(x)
        return out.scatter_reduce_(0, places, x, f"a{name}", include_self=include_base)
    x, index = _with_dense_rows(x), index.contiguous()
    seen = torch.full((num_rows,), int(include_base), dtype=torch.uint8)
    rows = _rows(x, index, None, num_rows, base)
    pointers = (ctypes.c_void_p(tensor.data_ptr()) for tensor in (x, seen, out))
    if not kernel(ctypes.byref(rows), *pointers):
        _complain(index, num_rows, None, len(x))
    return out


def _start(x: Tensor, num_rows: int, base: Tensor | None) -> Tensor:
    if base is not None:
        return base.clone(memory_format=torch.contiguous_format)
    shape = (num_rows, *x.shape[1:])
    return x.new_empty(shape) if can_scatter(x) else x.new_zeros(shape)


def _rows(
    x: Tensor, index: Tensor, source: Tensor | None, num_rows: int, base: Tensor | None
) -> _Rows:
    width = math.prod(x.shape[1:])
    threads = min(num_threads(len(index) * width), max(1, width // _MIN_WIDTH_PER_THREAD))
    addresses = index.data_ptr(), _address(source)
    return _Rows(
        *addresses, len(index), num_rows, len(x), width, x.stride(0), base is not None, threads
    )


def _with_dense_rows(x: Tensor) -> Tensor:
    # Slices of wider tensors (gradients of a concatenation) are read where they are.
    return x if len(x) and x[0].is_contiguous() else x.contiguous()


def _address(tensor: Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()


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


def _complain(index: Tensor, num_rows: int, source: Tensor | None, num_sources: int) -> None:
    for what, numbers, limit in (("goes to", index, num_rows), ("comes from", source, num_sources)):
        wrong = None if numbers is None else (numbers < 0) | (numbers >= limit)
        if numbers is not None and wrong is not None and bool(wrong.any()):
            entry = int(wrong.int().argmax())
            raise ArgumentError(
                f"entry {entry} of an aggregation {what} row {int(numbers[entry])}, but there are "
                f"{limit} rows; indices (edge_index, batch) must count rows of the batch from 0"
            )
    raise AssertionError("a kernel refused indices that look right")
