"""Which elements of a dataset belong to which process."""

from __future__ import annotations

from collections.abc import Iterator
from typing import final

import numpy as np
import torch
from torch.utils.data import Sampler

from torchkiln.data._errors import PartitionError


@final
class PartitionSampler(Sampler[int]):
    """Yields this process' share of the indices, in an order that all processes agree on.

    With `drop_last` every process gets a block of as many whole batches as all can have, so that
    the number of batches is the same everywhere; otherwise the elements are split as evenly as
    possible, and the first processes may have one more.

    The order is a function of `(seed, epoch)`. Every new iterator starts the next epoch; call
    `set_epoch` to resume at another one. Under a shuffle, odd epochs shift all blocks by the number
    of elements that the blocks leave over, so that the leftovers are not always drawn from the
    same end of the permutation.

    Args:
        num_elements: Size of the whole dataset.
        batch_size: Elements in a (combined) batch.
        num_processes: Processes that share the dataset.
        process_id: This process among them, from 0.
        drop_last: Whether incomplete batches are dropped.
        seed: Shuffles when given; must be the same in all processes.
    """

    def __init__(
        self,
        num_elements: int,
        *,
        batch_size: int,
        num_processes: int,
        process_id: int,
        drop_last: bool,
        seed: int | None = None,
    ) -> None:
        if not 0 <= process_id < num_processes:
            raise PartitionError(
                f"process_id {process_id} is outside 0..{num_processes - 1}; "
                "set num_processes to the number of processes"
            )
        self._num_elements = num_elements
        self._seed = seed
        self._leftover = 0
        if drop_last:
            self._length = batch_size * (num_elements // (batch_size * num_processes))
            self._offset = process_id * self._length
            self._leftover = num_elements - num_processes * self._length
        else:
            share, extra = divmod(num_elements, num_processes)
            self._length = share + (process_id < extra)
            self._offset = process_id * share + min(process_id, extra)
        self._epoch = 0

    @property
    def epoch(self) -> int:
        """The epoch that the next iterator will yield."""
        return self._epoch

    def set_epoch(self, epoch: int) -> None:
        """Make `epoch` the one that the next iterator yields."""
        self._epoch = epoch

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[int]:
        # A generator on purpose: torch's loaders make iterators that they never advance, and
        # those must not count as epochs.
        epoch = self._epoch
        self._epoch += 1
        if self._seed is None:
            yield from range(self._offset, self._offset + self._length)
            return
        start = self._offset + (self._leftover if epoch % 2 else 0)
        yield from self._permutation(epoch)[start : start + self._length].tolist()

    def _permutation(self, epoch: int) -> torch.Tensor:
        assert self._seed is not None
        # Mixed rather than added: seed 1 must not replay seed 0 one epoch later.
        mixed = np.random.SeedSequence((self._seed % 2**64, epoch)).generate_state(1, np.uint64)
        generator = torch.Generator().manual_seed(int(mixed[0]) % 2**63)
        return torch.randperm(self._num_elements, generator=generator)
