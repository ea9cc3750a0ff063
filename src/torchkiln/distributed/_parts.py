"""Sums and values that are divided among processes: each has one part of equal size.

Parts travel piece by piece, so that the room that this takes does not grow with what is divided.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import final

import torch
import torch.distributed as dist
from torch import Tensor

# Of one process in one message: large enough for the network, small beside any model, and far below
# what malloc keeps in pieces of its own.
_PIECE_BYTES = 2**20


@final
class Parts:
    """Adds up and gathers parts; rooms for pieces are kept from call to call.

    Args:
        size: How many processes there are.
        rank: Which one this is.
    """

    def __init__(self, size: int, rank: int) -> None:
        self._size = size
        self._rank = rank
        self._rooms: dict[tuple[str, torch.device], Tensor] = {}

    def sum_own_(self, flat: Tensor, group: dist.ProcessGroup) -> None:
        """Replace the own part of `flat` by the sum of that part over all processes.

        They are added in the order of ranks, each sum by the one process that needs it. What other
        parts hold afterwards is of no use.

        Args:
            flat: One dimension, of as many elements in each process; the part of a rank is as long
                as that of any other.
            group: The processes.
        """
        if flat.numel() % self._size:
            raise ValueError(
                f"flat must have a multiple of {self._size} elements, got {flat.numel()}; pad it"
            )
        rows = flat.view(self._size, -1)
        for begin, end in _pieces(rows.shape[1], flat):
            sent = self._room("sent", flat, (self._size, end - begin))
            sent.copy_(rows[:, begin:end])
            received = self._room("received", flat, sent.shape)
            dist.all_to_all_single(received.view(-1), sent.view(-1), group=group)
            total = rows[self._rank, begin:end]
            total.copy_(received[0])
            for other in received[1:]:
                total += other

    def gather(self, part: Tensor, group: dist.ProcessGroup) -> Iterator[tuple[int, Tensor]]:
        """Yield, piece by piece, the parts of all processes.

        Args:
            part: Of this process; one dimension, as long in each of them.
            group: The processes.

        Yields:
            Where in a part the piece begins, and the piece of every process: [processes, length].
            It lies in a room that the next piece uses again.
        """
        for begin, end in _pieces(part.numel(), part):
            # As bytes: not every library knows every dtype.
            piece = part[begin:end].view(torch.uint8)
            rows = self._room("received", part, (self._size, end - begin))
            dist.all_gather(list(rows.view(torch.uint8)), piece, group=group)
            yield begin, rows

    def _room(self, name: str, like: Tensor, shape: tuple[int, ...]) -> Tensor:
        """Return memory of this shape, and of the dtype and device of `like`."""
        key = (name, like.device)
        num_bytes = shape[0] * shape[1] * like.itemsize
        room = self._rooms.get(key)
        if room is None or room.numel() < num_bytes:
            room = torch.empty(num_bytes, dtype=torch.uint8, device=like.device)
            self._rooms[key] = room
        return room[:num_bytes].view(like.dtype).view(shape)


def _pieces(length: int, like: Tensor) -> Iterator[tuple[int, int]]:
    """Yield where the pieces of a part begin and end."""
    step = max(_PIECE_BYTES // like.itemsize, 1)
    for begin in range(0, length, step):
        yield begin, min(begin + step, length)
