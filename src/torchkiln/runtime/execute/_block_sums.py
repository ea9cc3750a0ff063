"""Sums of gradients that lie as an update is divided: one piece of memory for each block."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

import torch
from torch import Tensor

from torchkiln.runtime.optim._division import Division


@final
class BlockSums:
    """The sum of each parameter's gradients as a view of its block, zero at the beginning.

    Args:
        division: Which parameters make a block.
        forms: Tensors with the shapes, strides and dtypes of the sums; nothing is read from them.
        rank: Whose parts are this process' own.
        device: Where the memory is.
    """

    def __init__(
        self, division: Division, forms: Sequence[Tensor], rank: int, device: torch.device
    ) -> None:
        self._blocks = division.blocks
        self._rank = rank
        self._num_parts = division.num_parts
        self.buffers = [
            torch.zeros(
                block.part * division.num_parts, dtype=forms[block.members[0]].dtype, device=device
            )
            for block in division.blocks
        ]
        views: dict[int, Tensor] = {}
        for block, buffer in zip(division.blocks, self.buffers, strict=True):
            for member, offset in zip(block.members, block.offsets, strict=True):
                form = forms[member]
                views[member] = buffer.as_strided(form.shape, form.stride(), offset)
        # In the order of the parameters.
        self.views = [views[member] for member in range(len(forms))]
        # This process' part of each block.
        self.parts = [self._part(index, rank) for index in range(len(self._blocks))]

    def spare_parts(self) -> list[Tensor]:
        """Return room for this process' part of the parameters, in their dtype.

        It is in the parts of another process where those are wide enough: as soon as sums are added
        up, each process has its own, and what is left of the others' is of no use.
        """
        other = (self._rank + 1) % self._num_parts
        spare = []
        for index, block in enumerate(self._blocks):
            room = self._part(index, other)
            if room.itemsize >= block.dtype.itemsize:
                spare.append(room.view(block.dtype)[: block.part])
            else:
                spare.append(torch.empty(block.part, dtype=block.dtype, device=room.device))
        return spare

    def clear_(self) -> None:
        """Forget what was summed up."""
        for buffer in self.buffers:
            buffer.zero_()

    def _part(self, index: int, rank: int) -> Tensor:
        length = self._blocks[index].part
        return self.buffers[index][rank * length : (rank + 1) * length]
