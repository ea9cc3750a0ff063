"""`Exchange`: gradient sums of several processes become one, with what they tell each other."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import final

import torch
from torch import Tensor

from torchkiln.core import DistributedError, ReductionOrder, span
from torchkiln.distributed import Group
from torchkiln.runtime.execute._gradient_sums import GradientSums

# Counts that float32 holds without rounding; updates so far apart do not meet.
_MODULUS = 2**20
# Each process tells the number of its update, and a digest of the numbers that it updates with.
_NUM_CHECKS = 2


@final
class Exchange:
    """Adds up the gradient sums of all processes of a group, one collective for each dtype.

    Args:
        group: The processes.
        order: In which order their sums are added.
    """

    def __init__(self, group: Group, order: ReductionOrder) -> None:
        self.group = group
        # Seconds in collectives, and in waiting for the others in them.
        self.seconds = 0.0
        self._order = order
        self._num_updates = 0

    def num_slots(self, num_told: int) -> int:
        """Return how wide the tail of the sums is if each process tells so many numbers."""
        return _NUM_CHECKS + num_told

    def sum_(self, sums: GradientSums, digest: int, told: Sequence[float]) -> Tensor:
        """Replace the sums of this process by those of all.

        Args:
            sums: Of this process; if this fails, they are spoilt and must be cleared.
            digest: Of whatever must be the same in all processes besides the gradients; it is
                compared modulo 2**20.
            told: Numbers for all others.

        Returns:
            What each process told, a row for each, in float32 on the CPU.

        Raises:
            DistributedError: A process is missing, or is at another update.
        """
        group, tail = self.group, sums.tail
        rank = group.world.rank
        checks = self._begin(digest)
        # Rows of the others are zero here, so that adding them up leaves what each of them wrote.
        tail.zero_()
        tail[rank].copy_(torch.tensor([*checks, *told], dtype=tail.dtype))
        with self.timed("gradients"):
            for buffer in sums.buffers.values():
                group.sum_(as_real(buffer), self._order.value)
        return self._checked(tail.to("cpu", torch.float32, copy=True))

    def sum_parts_(
        self, buffers: Sequence[Tensor], digest: int, tell: Callable[[], Sequence[float]]
    ) -> Tensor:
        """Replace this process' part of each buffer by the sum of all; of the rest nothing is left.

        Args:
            buffers: Of gradient sums, each as long as many parts as there are processes.
            digest: As for `sum_`.
            tell: Returns numbers for all others; called when the sums are there.

        Returns:
            What each process told, a row for each, in float64 on the CPU.

        Raises:
            DistributedError: A process is missing, or is at another update.
        """
        group = self.group
        checks = self._begin(digest)
        with self.timed("gradients"):
            for buffer in buffers:
                group.sum_own_part_(as_real(buffer))
            own = [*checks, *tell()]
            rows = torch.zeros((group.world.size, len(own)), dtype=torch.float64)
            rows[group.world.rank] = torch.tensor(own, dtype=torch.float64)
            group.sum_(rows.view(-1))
        return self._checked(rows)

    @contextmanager
    def timed(self, what: str) -> Iterator[None]:
        """Count the time of collectives, and tell listeners what is exchanged meanwhile."""
        begin = time.perf_counter()
        try:
            with span("collective", what):
                yield
        finally:
            self.seconds += time.perf_counter() - begin

    def _begin(self, digest: int) -> tuple[float, float]:
        """Return what must be the same in all processes, for the update that comes now."""
        self.group.place = f"update {self._num_updates + 1}"
        return float(self._num_updates % _MODULUS), float(digest % _MODULUS)

    def _checked(self, rows: Tensor) -> Tensor:
        """Return what each process told if all of them do the same update."""
        require_same_update(range(len(rows)), rows)
        self._num_updates += 1
        return rows[:, _NUM_CHECKS:]


def require_same_update(ranks: Sequence[int], rows: Tensor) -> None:
    """Raise DistributedError, in all processes, if they do not do the same update.

    Args:
        ranks: Of the processes.
        rows: For each the number of its update, and a digest of what it updates with.
    """
    numbers, digests = rows[:, 0].tolist(), rows[:, 1].tolist()
    if len(set(numbers)) > 1:
        pairs = zip(ranks, numbers, strict=True)
        places = ", ".join(f"rank {rank} at {number + 1:.0f}" for rank, number in pairs)
        raise DistributedError(
            f"the processes are at different updates ({places}); all of them must make the "
            "same calls of a program: look for calls that only some ranks make, loaders of "
            "different lengths, and errors that one rank caught"
        )
    if len(set(digests)) > 1:
        pairs = zip(ranks, digests, strict=True)
        others = [str(rank) for rank, digest in pairs if digest != digests[0]]
        raise DistributedError(
            f"rank {', '.join(others)} would update with other numbers than rank {ranks[0]} "
            "(learning rate and the like, or how many updates the optimiser has seen), or calls "
            "another program; call set_optimizer and load_state_dict with the same values on all "
            "ranks, and programs in the same order"
        )


def as_real(buffer: Tensor) -> Tensor:
    """Return numbers that every communication library can add."""
    return torch.view_as_real(buffer).view(-1) if buffer.is_complex() else buffer
