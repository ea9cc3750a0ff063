"""Groups of batches from several processes, in one order."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from typing import Any, final

from torchkiln.data import LoaderMode
from torchkiln.graphs.batches._collate import Collator
from torchkiln.graphs.batches._gather import Gathered
from torchkiln.graphs.loaders._epoch_plan import EpochPlanner, WorkItem, WorkItems
from torchkiln.graphs.loaders._pass_reader import PassReader
from torchkiln.graphs.loaders._position import Position

# What Python does for a batch takes longer than copying a small one, and so does telling another
# process about it: small ones are made and sent together.
_MAX_GROUP = 8
_MAX_GROUP_BYTES = 4 * 2**20


def group_size_for(collator: Collator) -> int:
    """Return how many batches to make at once."""
    return max(1, min(_MAX_GROUP, _MAX_GROUP_BYTES // max(collator.num_bytes, 1)))


@final
class GroupMaker:
    """Gathers the batches of a work item, in any process.

    Args:
        collator: Makes them.
        trim_seed: Graphs that are too large are trimmed by this seed; None: there are none.
    """

    def __init__(self, collator: Collator, trim_seed: int | None) -> None:
        self._collator = collator
        self._trim_seed = trim_seed

    def __call__(self, item: WorkItem) -> Gathered:
        """Return the batches of an item."""
        trim = None if self._trim_seed is None else (self._trim_seed, item.epoch)
        return self._collator.gather(item.batches, trim=trim)


@final
class GroupReader:
    """Reads groups from processes in turn: group `i` comes from process `i % num_processes`.

    A process has a buffer of shared memory that it uses again and again. That takes a fraction of
    what torch's workers take, which map new memory for every message. Each process plans the epoch
    itself, so nothing is sent to it, and it goes on with the next epoch by itself.

    Args:
        planner: Knows the groups of every epoch.
        make: Makes a group.
        num_processes: Child processes; 0 makes groups in this one.
        group_size: Batches in a group.
        async_options: Arguments of `AsyncPrefetcher`.
    """

    def __init__(
        self,
        planner: EpochPlanner,
        make: GroupMaker,
        *,
        num_processes: int,
        group_size: int,
        async_options: Mapping[str, Any] | None,
    ) -> None:
        self._planner = planner
        self._group_size = group_size
        num_readers = max(num_processes, 1)
        self._readers = [
            PassReader(
                functools.partial(_items_of, planner, group_size, number, num_readers),
                make,
                mode=LoaderMode.ASYNC if num_processes else LoaderMode.SYNC,
                async_options=async_options,
            )
            for number in range(num_readers)
        ]

    def read(self, start: Position) -> Iterator[Gathered]:
        """Yield the groups of an epoch, without the first `start.done` of them."""
        started: dict[int, Iterator[Gathered]] = {}
        num_groups = len(self._planner.items(start.epoch, group_size=self._group_size))
        for group in range(start.done, num_groups):
            done, number = divmod(group, len(self._readers))
            if number not in started:
                started[number] = self._readers[number].read(Position(start.epoch, done))
            yield next(started[number])

    def terminate(self) -> None:
        for reader in self._readers:
            reader.terminate()


def _items_of(
    planner: EpochPlanner, group_size: int, number: int, num_readers: int, epoch: int
) -> WorkItems:
    return planner.items(epoch, group_size=group_size)[number::num_readers]
