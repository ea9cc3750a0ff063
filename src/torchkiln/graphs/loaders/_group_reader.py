"""Groups of batches from several processes, in one order."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from typing import Any, final

from torchkiln.data import LoaderMode
from torchkiln.graphs.batches._collate import Collator
from torchkiln.graphs.batches._gather import Gathered
from torchkiln.graphs.loaders._epoch_plan import EpochPlanner, WorkItem, WorkItems
from torchkiln.graphs.loaders._resumable import (
    Position,
    ResumableLoader,
    check_reached,
    read_state,
)

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
class Lanes:
    """Reads groups from processes in turn: group `i` comes from lane `i % num_lanes`.

    A lane is a child process with a buffer of shared memory that it uses again and again. That
    takes a fraction of what torch's workers take, which map new memory for every message. Each lane
    plans the epoch itself, so nothing is sent to it, and it goes on with the next epoch by itself.

    Args:
        planner: Knows the groups of every epoch.
        make: Makes a group.
        identity: See `ResumableLoader`.
        num_lanes: Child processes; 0 makes groups in this one.
        group_size: Batches in a group.
        async_options: Arguments of `AsyncPrefetcher`.
    """

    def __init__(
        self,
        planner: EpochPlanner,
        make: GroupMaker,
        *,
        identity: Mapping[str, Any],
        num_lanes: int,
        group_size: int,
        async_options: Mapping[str, Any] | None,
    ) -> None:
        self._planner = planner
        self._group_size = group_size
        self._identity = dict(identity)
        self._lanes = [
            ResumableLoader(
                functools.partial(_items_of, planner, group_size, lane, max(num_lanes, 1)),
                make,
                identity=identity,
                mode=LoaderMode.ASYNC if num_lanes else LoaderMode.SYNC,
                async_options=async_options,
            )
            for lane in range(max(num_lanes, 1))
        ]

    @property
    def identity(self) -> dict[str, Any]:
        return dict(self._identity)

    def read(self, epoch: int, begin: int) -> Iterator[Gathered]:
        """Yield the groups of an epoch from number `begin` on."""
        started: dict[int, Iterator[Gathered]] = {}
        for group in range(begin, len(self._planner.items(epoch, group_size=self._group_size))):
            lane = group % len(self._lanes)
            if lane not in started:
                started[lane] = self._start(lane, epoch, group // len(self._lanes))
            yield next(started[lane])

    def locate(self, state: Mapping[str, Any]) -> Position:
        """Return where `state` was taken.

        Raises:
            LoaderError: It comes from a loader with another order of batches.
        """
        position = read_state(state, self._identity)
        return check_reached(position, self._planner.num_batches(position.epoch))

    def terminate(self) -> None:
        for lane in self._lanes:
            lane.terminate()

    def _start(self, lane: int, epoch: int, done: int) -> Iterator[Gathered]:
        loader = self._lanes[lane]
        if loader.epoch != epoch or done:
            state = {"epoch": epoch, "done": done, "identity": self._identity}
            loader.load_state_dict(state)
        return iter(loader)


def _items_of(
    planner: EpochPlanner, group_size: int, lane: int, num_lanes: int, epoch: int
) -> WorkItems:
    return planner.items(epoch, group_size=group_size)[lane::num_lanes]
