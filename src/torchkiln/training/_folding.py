"""`Folding`: the order of all mini-batches of a call, whichever process computes them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self, final

from torch import Tensor

from torchkiln.core import Options


@final
@dataclass(frozen=True, slots=True)
class Folding:
    """Mini-batches of one call in the order of a single process that has all replicas.

    For each weight update, and each step of accumulation in it, that is rank after rank, and of
    each rank replica after replica.

    Args:
        updates: Weight updates of the call.
        accumulation: Steps of accumulation of each.
        ranks: Processes that take part.
        replicas: Of each process.
    """

    updates: int
    accumulation: int
    ranks: int
    replicas: int

    @classmethod
    def of(cls, options: Options) -> Self:
        """Return the order in a program with these options."""
        ranks = options.num_pipelines if options.synchronizes else 1
        return cls(
            options.device_iterations,
            options.gradient_accumulation,
            ranks,
            options.replication_factor,
        )

    @property
    def own_per_update(self) -> int:
        """Mini-batches of one process in an update."""
        return self.accumulation * self.replicas

    @property
    def per_update(self) -> int:
        """Mini-batches of all processes in an update."""
        return self.ranks * self.own_per_update

    def join(self, by_rank: Tensor) -> Tensor:
        """Return one value a mini-batch, in order.

        Args:
            by_rank: [updates, ranks, mini-batches of the process].
        """
        parts = by_rank.reshape(self.updates, self.ranks, self.accumulation, self.replicas)
        return parts.transpose(1, 2).reshape(-1)

    def owner(self, number: int) -> tuple[int, int]:
        """Return which rank has a mini-batch, and its number among those of that rank."""
        step, rest = divmod(number, self.ranks * self.replicas)
        rank, replica = divmod(rest, self.replicas)
        return rank, step * self.replicas + replica
