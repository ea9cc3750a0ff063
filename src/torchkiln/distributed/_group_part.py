"""`GroupPart`: some processes of a group, which add up numbers among themselves."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Protocol, final

import torch.distributed as dist
from torch import Tensor

from torchkiln.distributed._ordered_sum import Order, OrderedSum
from torchkiln.distributed._world import World


class Whole(Protocol):
    """What a part asks of its group."""

    world: World
    place: str

    def talking(self) -> AbstractContextManager[None]:
        """Count the time of a collective, and explain its failure."""


@final
class GroupPart:
    """Made by `Group.divided`, in all processes; a failure here is one of the whole group.

    Args:
        whole: The group.
        ranks: Those of its processes that belong to this part, in their order here.
        process_group: What connects them; None: this process is alone in its part.
    """

    def __init__(
        self, whole: Whole, ranks: tuple[int, ...], process_group: dist.ProcessGroup | None
    ) -> None:
        self._whole = whole
        self._process_group = process_group
        self._add_in_order = OrderedSum()
        self.ranks = ranks
        # The place of this process among them.
        place = ranks.index(whole.world.rank)
        self.world = World(rank=place, size=len(ranks), local_rank=place, local_size=len(ranks))

    @property
    def place(self) -> str:
        """Where the run is, for the message about a rank that is lost."""
        return self._whole.place

    @place.setter
    def place(self, place: str) -> None:
        self._whole.place = place

    def sum_(self, flat: Tensor, order: Order = "folded") -> None:
        """Replace the numbers of each process of this part by their sums, as `Group.sum_` does."""
        group = self._process_group
        with self._whole.talking():
            if group is None:
                return
            if order == "fastest" or self.world.size == 2:
                dist.all_reduce(flat, group=group)
            else:
                self._add_in_order(flat, self.world.size, group)
