"""Sums over processes whose bits are those of one process that adds one after the other."""

from __future__ import annotations

from typing import Literal, final

import torch
import torch.distributed as dist
from torch import Tensor

# Of ranks, or whichever the library likes best.
Order = Literal["folded", "fastest"]


@final
class OrderedSum:
    """Adds the numbers of all processes in the order of their ranks.

    Each process adds one part of them for all: the parts are exchanged, added, and gathered again.
    A library's own sum would add in an order that depends on the number of processes and on where
    in the buffer a number lies.
    """

    def __init__(self) -> None:
        # Room for the parts of the others, kept from call to call.
        self._room: Tensor | None = None

    def __call__(self, flat: Tensor, size: int, group: dist.ProcessGroup) -> None:
        """Replace the numbers of each process by the sums.

        Args:
            flat: One dimension; its length is a multiple of the number of processes.
            size: That number.
            group: The processes.
        """
        parts = self._room_for(flat, size)
        dist.all_to_all_single(parts, flat, group=group)
        first, *others = parts.chunk(size)
        for part in others:
            first += part
        dist.all_gather_into_tensor(flat, first, group=group)

    def _room_for(self, flat: Tensor, size: int) -> Tensor:
        if flat.numel() % size:
            raise ValueError(
                f"flat must have a multiple of {size} elements, got {flat.numel()}; pad it"
            )
        room = self._room
        if room is None or (room.shape, room.dtype, room.device) != (
            flat.shape,
            flat.dtype,
            flat.device,
        ):
            room = self._room = torch.empty_like(flat)
        return room
