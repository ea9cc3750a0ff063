"""Many tensors as few rows of bytes, so that they travel in few messages."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

# A row of bytes is a copy; several smaller ones need less memory than one of the whole model.
_LARGEST = 256 * 2**20
# What tensors begin at a multiple of, so that each can be seen as its own dtype.
_ALIGNMENT = 16


def packed(tensors: Sequence[Tensor]) -> Iterator[tuple[list[Tensor], Tensor]]:
    """Yield some of the tensors, all on one device, with their bytes, until none is left."""
    some: list[Tensor] = []
    for tensor in tensors:
        if some and (tensor.device != some[0].device or _size([*some, tensor]) > _LARGEST):
            yield some, _bytes(some)
            some = []
        some.append(tensor)
    if some:
        yield some, _bytes(some)


@torch.no_grad()
def unpacked(row: Tensor, tensors: Sequence[Tensor]) -> None:
    """Give the tensors the values that lie in a row of bytes."""
    for tensor, part in zip(tensors, _parts(row, tensors), strict=True):
        tensor.copy_(part.view(tensor.dtype).view(tensor.shape))


@torch.no_grad()
def _bytes(tensors: Sequence[Tensor]) -> Tensor:
    row = torch.zeros(_size(tensors), dtype=torch.uint8, device=tensors[0].device)
    for tensor, part in zip(tensors, _parts(row, tensors), strict=True):
        part.view(tensor.dtype).copy_(tensor.reshape(-1))
    return row


def _parts(row: Tensor, tensors: Sequence[Tensor]) -> Iterator[Tensor]:
    begin = 0
    for tensor in tensors:
        yield row[begin : begin + tensor.nbytes]
        begin += _aligned(tensor.nbytes)


def _size(tensors: Sequence[Tensor]) -> int:
    return sum(_aligned(tensor.nbytes) for tensor in tensors)


def _aligned(num_bytes: int) -> int:
    return -(-num_bytes // _ALIGNMENT) * _ALIGNMENT
