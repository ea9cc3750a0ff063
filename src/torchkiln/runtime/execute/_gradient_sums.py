"""Sums of gradients: one piece of memory for each dtype, so that processes exchange few tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

import torch
from torch import Tensor

# What native code and communication libraries like best: a line of the cache.
_ALIGNMENT_BYTES = 64
# What can hold the tail, best first: dtypes that count to 2**20 without rounding.
_EXACT = (torch.float32, torch.float64)


@final
class GradientSums:
    """The sum of each parameter's gradients as a view of a flat buffer, zero at the beginning.

    Args:
        forms: Tensors with the shapes, strides and dtypes of the sums; nothing is read from them.
        device: Where the memory is.
        num_ranks: Processes that share the sums; the length of a buffer is a multiple of it.
        num_slots: Numbers that each process tells all others together with the sums.
    """

    def __init__(
        self,
        forms: Sequence[Tensor],
        device: torch.device,
        *,
        num_ranks: int = 1,
        num_slots: int = 0,
    ) -> None:
        lengths: dict[torch.dtype, int] = {}
        offsets = []
        for form in forms:
            offsets.append(_aligned(lengths.get(form.dtype, 0), form.dtype))
            lengths[form.dtype] = offsets[-1] + form.numel()
        tail = next((dtype for dtype in _EXACT if dtype in lengths), torch.float32)
        start, size = lengths.get(tail, 0), num_ranks * num_slots
        if size:
            start = _aligned(start, tail)
            lengths[tail] = start + size
        # Flat, one for each dtype, padded with zeros.
        self.buffers = {
            dtype: torch.zeros(_rounded(length, num_ranks), dtype=dtype, device=device)
            for dtype, length in lengths.items()
        }
        # In the order of `forms`, each with the strides of its form.
        self.views = [
            self.buffers[form.dtype].as_strided(form.shape, form.stride(), offset)
            for form, offset in zip(forms, offsets, strict=True)
        ]
        # A row for each process: the sum of rows that are zero elsewhere
        # tells everybody all of them.
        self.tail = (
            self.buffers[tail][start : start + size].view(num_ranks, num_slots)
            if size
            else torch.zeros((num_ranks, 0), device=device)
        )

    def clear_(self) -> None:
        """Forget what was summed up, as after an update that was not done."""
        for buffer in self.buffers.values():
            buffer.zero_()


def _aligned(offset: int, dtype: torch.dtype) -> int:
    """Return the first place from `offset` on that begins a line of the cache."""
    return _rounded(offset, _ALIGNMENT_BYTES // dtype.itemsize)


def _rounded(number: int, step: int) -> int:
    """Return the first multiple of `step` from `number` on."""
    return -(-number // step) * step
