"""Sums over consecutive rows, as readouts of many graphs need them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from torchkiln.core import ArgumentError
from torchkiln.ops._define import define_operator


def segment_sum(x: Tensor, batch: Tensor, num_segments: int) -> Tensor:
    """Return the sums of rows of `x` with the same number in `batch`, [num_segments, ...].

    Sums are formed in the order of rows, whatever the number of threads: the same bits each time.
    Segments without rows are 0. Any order of derivatives.

    Args:
        x: One row each, [num_rows, ...].
        batch: Segment of each row, int64 and ascending, [num_rows].
        num_segments: How many segments there are.

    Raises:
        ArgumentError: if shapes or dtypes do not fit, `batch` is not ascending, or holds a number
            outside [0, num_segments). Values are checked when the operation runs, on the CPU only.
    """
    if x.dim() < 1 or batch.shape != x.shape[:1]:
        raise ArgumentError(
            f"batch must have one entry for each row of x, got {list(batch.shape)} for "
            f"{list(x.shape)}"
        )
    if batch.dtype != torch.int64 or num_segments < 0:
        raise ArgumentError(
            f"batch must be int64 and num_segments not negative, got {batch.dtype} and "
            f"{num_segments}"
        )
    try:
        return _segment_sum(x, batch, num_segments)
    except RuntimeError:
        _check_order(batch, num_segments)
        raise


@define_operator("segment_sum", native="_segment_sum")
def _segment_sum(x: Tensor, batch: Tensor, num_segments: int) -> Tensor:
    if x.device.type == "cpu":
        _check_order(batch, num_segments)
    return x.new_zeros((num_segments, *x.shape[1:])).index_add_(0, batch, x)


@torch.library.register_fake("torchkiln::segment_sum")
def _(x: Tensor, batch: Tensor, num_segments: int) -> Tensor:
    return x.new_empty((num_segments, *x.shape[1:]))


def _remember(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(inputs[1])


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
    (batch,) = ctx.saved_tensors
    return grad.index_select(0, batch), None, None


torch.library.register_autograd("torchkiln::segment_sum", _backward, setup_context=_remember)


@define_operator("segment_sum_check")
def _check_order(batch: Tensor, num_segments: int) -> None:
    wrong = (batch < 0) | (batch >= num_segments)
    wrong[1:] |= batch[1:] < batch[:-1]
    if bool(wrong.any()):
        raise ArgumentError(_complaint(int(wrong.int().argmax()), batch, num_segments))


def _complaint(row: int, batch: Tensor, num_segments: int) -> str:
    segment = int(batch[row])
    if not 0 <= segment < num_segments:
        return (
            f"row {row} is in segment {segment}, but there are {num_segments}; raise num_segments "
            f"(batch.num_graphs, or graph_mask.shape[0] of a fixed-size batch)"
        )
    return (
        f"batch must be ascending, but row {row} (segment {segment}) stands after a row of a later "
        f"segment; sort rows by segment, or use index_add"
    )
