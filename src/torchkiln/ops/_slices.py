"""Slices whose start is a value, with a size that is not."""

from __future__ import annotations

import torch
from torch import Tensor


def dynamic_slice(tensor: Tensor, dim: int, start: Tensor, size: int, step: int = 1) -> Tensor:
    """Return `tensor[start : start + size : step]` along `dim`; `start` holds one integer.

    Raises:
        ValueError: if `start` is not one integer, or `size` or `step` is not positive.
    """
    if step < 1:
        raise ValueError(f"step must be at least 1, got {step}")
    offsets = torch.arange(0, _checked_size(tensor, dim, size), step, device=tensor.device)
    return tensor.index_select(dim, _checked_start(start) + offsets)


def dynamic_update(tensor: Tensor, source: Tensor, dim: int, start: Tensor, size: int) -> Tensor:
    """Return a copy of `tensor` that holds `source` at `start : start + size` along `dim`.

    Raises:
        ValueError: if ranks, dtypes or the size of `source` do not fit.
    """
    if tensor.dim() != source.dim():
        raise ValueError(
            f"both tensors need the same rank, got {tensor.dim()} and {source.dim()} dimensions"
        )
    if tensor.dtype != source.dtype:
        raise ValueError(f"both tensors need the same dtype, got {tensor.dtype}, {source.dtype}")
    if source.shape[dim] != _checked_size(tensor, dim, size):
        raise ValueError(f"source has {source.shape[dim]} entries in dim {dim}, but size is {size}")
    offsets = torch.arange(size, device=tensor.device)
    return tensor.index_copy(dim, _checked_start(start) + offsets, source)


def _checked_size(tensor: Tensor, dim: int, size: int) -> int:
    if not 1 <= size <= tensor.shape[dim]:
        raise ValueError(f"size must be 1 to {tensor.shape[dim]} (dim {dim}), got {size}")
    return size


def _checked_start(start: Tensor) -> Tensor:
    if start.numel() != 1 or start.is_floating_point() or start.dtype == torch.bool:
        raise ValueError(
            f"start must hold one integer, got shape {list(start.shape)} of {start.dtype}"
        )
    return start.reshape(1).long()
