"""Groups of batches from several processes, in one order."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from typing import Any, final

from torchkiln.data import LoaderMode
from torchkiln.graphs._batch_group import BatchGroup, GroupMaker
from torchkiln.graphs._epoch_plan import EpochPlanner, WorkItems
from torchkiln.graphs._resumable import ResumableLoader


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

    def read(self, epoch: int, begin: int) -> Iterator[BatchGroup]:
        """Yield the groups of an epoch from number `begin` on."""
        started: dict[int, Iterator[BatchGroup]] = {}
        for group in range(begin, len(self._planner.items(epoch, group_size=self._group_size))):
            lane = group % len(self._lanes)
            if lane not in started:
                started[lane] = self._start(lane, epoch, group // len(self._lanes))
            yield next(started[lane])

    def check(self, state: Mapping[str, Any]) -> None:
        """Raise `LoaderError` if `state` comes from a loader with another order of batches."""
        self._lanes[0].load_state_dict({**state, "done": 0})

    def terminate(self) -> None:
        for lane in self._lanes:
            lane.terminate()

    def _start(self, lane: int, epoch: int, done: int) -> Iterator[BatchGroup]:
        loader = self._lanes[lane]
        if loader.epoch != epoch or done:
            state = {"epoch": epoch, "done": done, "identity": self._identity}
            loader.load_state_dict(state)
        return iter(loader)


def _items_of(
    planner: EpochPlanner, group_size: int, lane: int, num_lanes: int, epoch: int
) -> WorkItems:
    return planner.items(epoch, group_size=group_size)[lane::num_lanes]
