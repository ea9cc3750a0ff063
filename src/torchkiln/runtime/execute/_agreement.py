"""`Agreement`: whether processes still train the same weights, and call the same program."""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import final

import torch
import xxhash
from torch import Tensor

from torchkiln.core import DistributedError
from torchkiln.distributed import Group
from torchkiln.torch_internals._tensors import versions_of

_programs = itertools.count()


def number_of_program(group: Group) -> int:
    """Return what a new program is to all processes; all of them call this when they make one."""
    return group.from_first(next(_programs))


def digest_of_program(program: int, numbers: int) -> int:
    """Return what is the same in processes that do the same update of the same program."""
    return zlib.crc32(str(program).encode(), numbers)


@final
class Agreement:
    """Notices what would let the weights of processes drift apart, without asking at every update.

    Gradients are added up and weights are not: what one process loads or writes between two calls
    would stay different for good. Made by all processes together.

    Args:
        group: The processes.
        weights: Returns what must be the same in all of them; asked twice a call.
        state: Returns what else must be, in memory that stays.
        named: Returns both by name.
    """

    def __init__(
        self,
        group: Group,
        weights: Callable[[], Sequence[Tensor]],
        state: Callable[[], Sequence[Tensor]],
        named: Callable[[], Mapping[str, Tensor]],
    ) -> None:
        self._group = group
        self._weights = weights
        self._state = state
        self._named = named
        # Which program this is for all of them.
        self._program = number_of_program(group)
        self._left: list[int] = []
        self.is_changed = False
        self.end_call()

    def begin_call(self) -> None:
        """Look whether somebody else wrote to the tensors since the call before."""
        self.is_changed = self.is_changed or self._marks() != self._left

    def end_call(self) -> None:
        """Take what is there now for the work of this program."""
        self._left, self.is_changed = self._marks(), False

    def digest(self, numbers: int) -> int:
        """Return what is the same in processes that do the same update of the same program."""
        return digest_of_program(self._program, numbers)

    def settle(self, changed: list[bool]) -> None:
        """Compare the tensors, before an update, if a process found them changed.

        A profile, or an average that was swapped in and out, leaves what was there.

        Args:
            changed: What each process found; the same list in all of them.

        Raises:
            DistributedError: In all processes, if they have other values.
        """
        if not any(changed):
            return
        found = self._group.gather({name: _digest(t) for name, t in self._named().items()})
        names = [name for name in found[0] if any(o.get(name) != found[0][name] for o in found)]
        if names:
            more = f" and {len(names) - 1} more" * (len(names) > 1)
            ranks = ", ".join(str(rank) for rank, is_changed in enumerate(changed) if is_changed)
            raise DistributedError(
                f"the ranks no longer have the same {names[0]}{more}: something else than this "
                f"program changed the weights or the state of the optimiser of rank {ranks} since "
                "the last call; load and change them alike on all ranks (those of rank 0 are taken "
                "only when a program is built), or call destroy() on all of them to build it again"
            )
        self.is_changed = False

    def _marks(self) -> list[int]:
        """Return what changes whenever torch writes to a tensor, or another one takes its place."""
        weights = self._weights()
        versions = versions_of([*weights, *self._state()])
        return versions + [weight.data_ptr() for weight in weights]


def _digest(tensor: Tensor) -> str:
    flat = tensor.detach().cpu().contiguous().view(-1)
    return xxhash.xxh3_128_hexdigest(flat.view(torch.uint8).numpy().data)
