"""Squared distances, and the smallest ones of each row, with PyG's choice among equal ones."""

from __future__ import annotations

import torch
from torch import Tensor

# Coordinates that are added up in one operation where there are many.
_BLOCK = 16


def squared_distances(y: Tensor, x: Tensor) -> Tensor:
    """Return the squared distance of each row of `y` to each row of `x`, [len(y), len(x)].

    Differences are squared instead of multiplied out, because the smallest distances matter. There
    is no root, which would round different distances to equal ones. Few coordinates are added one
    after the other, as PyG's searches do, so that the same points are equally distant.
    """
    total = y.new_zeros(len(y), len(x))
    width = x.shape[1]
    if width <= _BLOCK:
        for column in range(width):
            total = total + (y[:, None, column] - x[None, :, column]).square()
        return total
    for first in range(0, width, _BLOCK):
        block = slice(first, first + _BLOCK)
        total = total + (y[:, None, block] - x[None, :, block]).square().sum(dim=-1)
    return total


def first_smallest(values: Tensor, width: int) -> Tensor:
    """Return the columns of the `width` smallest values of each row, the smallest first.

    Of equal values the first ones are taken, in their order. `topk` promises none, and differs
    between backends.
    """
    if values.dtype == torch.float64 or values.shape[1] >= 2**31:
        return values.sort(dim=1, stable=True).indices[:, :width]
    # One number for each value and column: the bits of a float, read as an integer, are in the
    # order of the values, in the opposite one for negative values.
    bits = values.float().view(torch.int32)
    ordered = torch.where(bits < 0, bits ^ 0x7FFFFFFF, bits).long()
    # What is not a number may have either sign; it comes last, as in a sort.
    ordered = ordered.masked_fill(values.isnan(), 0x7FFFFFFF)
    columns = torch.arange(values.shape[1], device=values.device)
    return ((ordered << 32) | columns).topk(width, dim=1, largest=False).indices
