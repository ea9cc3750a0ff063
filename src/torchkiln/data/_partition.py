"""Which elements of a dataset belong to which process."""

from __future__ import annotations

from collections.abc import Iterator, Sized
from typing import Any, final

import numpy as np
import torch
from torch.utils.data import Dataset, IterableDataset, Sampler

from torchkiln.core import Options
from torchkiln.data._errors import PartitionError


@final
class PartitionSampler(Sampler[int]):
    """Yields this process' share of the indices, in an order that all processes agree on.

    With `drop_last` every process gets as many whole batches as all can have, so that the number of
    batches is the same everywhere; otherwise the elements are split as evenly as possible, and the
    first processes may have one more. The share of a process is one block, or it is dealt in turn
    with the others, `turn_size` elements at a time.

    The order is a function of `(seed, epoch)`, whatever the number of processes is. Every new
    iterator starts the next epoch; call `set_epoch` to resume at another one. Under a shuffle, odd
    epochs shift all shares by the number of elements that they leave over, so that the leftovers
    are not always drawn from the same end of the permutation.

    Args:
        num_elements: Size of the whole dataset.
        batch_size: Elements in a (combined) batch.
        num_processes: Processes that share the dataset.
        process_id: This process among them, from 0.
        drop_last: Whether incomplete batches are dropped.
        seed: Shuffles when given; must be the same in all processes.
        turn_size: Elements that processes get at a time, in turn; it divides `batch_size`. None
            gives each process one block.

    Raises:
        PartitionError: There is no such process, or elements that are dealt in turn do not fill
            equally many whole batches, and `drop_last` is off.
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
        turn_size: int | None = None,
    ) -> None:
        if not 0 <= process_id < num_processes:
            raise PartitionError(
                f"process_id {process_id} is outside 0..{num_processes - 1}; "
                "set num_processes to the number of processes"
            )
        if turn_size is not None and (turn_size < 1 or batch_size % turn_size):
            raise PartitionError(
                f"turn_size {turn_size} does not divide batch_size {batch_size}; "
                "a batch consists of whole turns"
            )
        per_call = batch_size * num_processes
        if turn_size is not None and not drop_last and num_elements % per_call:
            raise PartitionError(
                f"{num_elements} elements do not fill whole batches of {batch_size} in each of "
                f"{num_processes} processes that train together: {num_elements % per_call} are "
                f"left over; pass drop_last=True, or make the dataset a multiple of {per_call}. To "
                "divide data for validation, pass options with sync_gradients=False"
            )
        self._num_elements = num_elements
        self._num_processes, self._process_id = num_processes, process_id
        self._seed = seed
        self._turn_size = turn_size
        self._leftover = 0
        if drop_last or turn_size is not None:
            self._length = batch_size * (num_elements // per_call)
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

    @property
    def seed(self) -> int | None:
        """What the order is drawn from; None keeps that of the dataset."""
        return self._seed

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
        order: range | torch.Tensor = range(self._num_elements)
        shift = 0
        if self._seed is not None:
            order = self._permutation(epoch)
            shift = self._leftover if epoch % 2 else 0
        for start, stop in self._spans():
            part = order[start + shift : stop + shift]
            yield from part if isinstance(part, range) else part.tolist()

    def _spans(self) -> Iterator[tuple[int, int]]:
        """Yield which places of the order are this process', as (start, stop)."""
        size = self._turn_size
        if size is None:
            yield self._offset, self._offset + self._length
            return
        for turn in range(self._length // size):
            start = (turn * self._num_processes + self._process_id) * size
            yield start, start + size

    def _permutation(self, epoch: int) -> torch.Tensor:
        assert self._seed is not None
        # Mixed rather than added: seed 1 must not replay seed 0 one epoch later.
        mixed = np.random.SeedSequence((self._seed % 2**64, epoch)).generate_state(1, np.uint64)
        generator = torch.Generator().manual_seed(int(mixed[0]) % 2**63)
        return torch.randperm(self._num_elements, generator=generator)


def make_partition(
    options: Options,
    dataset: Dataset[Any],
    batch_size: int | None,
    *,
    shuffle: bool,
    drop_last: bool,
    sampler: Any,
    blocks: bool,
) -> PartitionSampler:
    """Return what divides a dataset among the processes of a program.

    Args:
        options: Of the program.
        dataset: Map-style.
        batch_size: Elements of a micro-batch.
        shuffle: Whether the order is drawn, by the options' seed.
        drop_last: See `PartitionSampler`.
        sampler: What the user wants to divide the dataset by; that makes two.
        blocks: Whether processes get one block each. Otherwise they get the micro-batches of their
            replicas in turn, so that each update of all processes together has those that one
            process with all replicas would have.

    Raises:
        PartitionError: The dataset cannot be divided like this.
    """
    remedy = "divide it yourself and pass auto_distributed_partitioning=False"
    if isinstance(dataset, IterableDataset):
        raise PartitionError(
            f"an iterable dataset cannot be divided among {options.num_processes} processes "
            f"automatically; {remedy}"
        )
    if batch_size is None:
        raise PartitionError(
            f"batch_size=None cannot be divided among {options.num_processes} processes; {remedy}"
        )
    if sampler is not None:
        raise PartitionError(
            f"sampler {sampler!r} already decides which elements are read; let it yield this "
            "process' elements and pass auto_distributed_partitioning=False"
        )
    if shuffle and options.random_seed is None:
        raise PartitionError(
            "shuffle=True among several processes needs options.random_seed, the same in all of "
            "them, so that they agree on one order"
        )
    if not isinstance(dataset, Sized):
        raise PartitionError(f"{type(dataset).__name__} has no length; {remedy}")
    inputs = options.replication_factor // options.input_group_size
    return PartitionSampler(
        len(dataset),
        batch_size=batch_size * options.combined_factor,
        num_processes=options.num_pipelines,
        process_id=options.pipeline_id,
        drop_last=drop_last,
        seed=options.random_seed if shuffle else None,
        turn_size=None if blocks else batch_size * inputs,
    )
