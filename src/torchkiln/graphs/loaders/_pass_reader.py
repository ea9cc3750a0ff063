"""`PassReader`: makes what a plan asks for, here or in other processes, from any item on."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, final

import torch
import torch.utils.data

from torchkiln.core import Options
from torchkiln.data import AsyncPrefetcher, DataLoader, LoaderError, LoaderMode
from torchkiln.data._user_code import UserCode
from torchkiln.graphs.loaders._position import Position

Plan = Callable[[int], Sequence[Any]]
Make = Callable[[Any], Any]


@final
class PassReader:
    """Yields `make(item)` for the items of `plan(epoch)`, from wherever it is told to begin.

    It does not know how far anybody got: that is the loader's. Nothing here reads or changes
    torch's global generator: what is random must follow from the epoch and the item.

    Args:
        plan: Gives the work items of an epoch for this process, as many in every process. A
            function of the epoch alone; items must be small (index arrays), they are sent to
            workers.
        make: Makes one batch from one item; runs in the workers, so it must be picklable if these
            are spawned.
        num_workers: torch's worker processes; they persist from epoch to epoch.
        mode: SYNC, or ASYNC to load ahead in a child process.
        async_options: Arguments of `AsyncPrefetcher`.
    """

    def __init__(
        self,
        plan: Plan,
        make: Make,
        *,
        num_workers: int = 0,
        mode: LoaderMode = LoaderMode.SYNC,
        async_options: Mapping[str, Any] | None = None,
    ) -> None:
        self._plan = plan
        self._make = make
        self._num_workers = num_workers
        self._mode = mode
        self._async_options = dict(async_options or {})
        self._passes = _Passes(plan, make, num_workers)
        self._prefetcher: AsyncPrefetcher | None = None
        self._prefetched = Position(0, 0)  # where the prefetcher's next pass begins

    @property
    def prefetcher(self) -> AsyncPrefetcher | None:
        """What loads ahead, once something was read."""
        return self._prefetcher

    def num_items(self, epoch: int) -> int:
        """Return how many items an epoch has."""
        return len(self._passes.items_of(epoch))

    def read(self, start: Position) -> Iterator[Any]:
        """Return what is made of the items of an epoch, without those that are done."""
        return self._read_here(start) if self._mode is LoaderMode.SYNC else self._prefetch(start)

    def terminate(self) -> None:
        """End all processes; reading starts them again."""
        if self._prefetcher is not None:
            self._prefetcher.terminate()
            self._prefetcher = None
        self._passes.end_workers()

    def _read_here(self, start: Position) -> Iterator[Any]:
        self._passes.start = start
        self._passes.set_epoch(start.epoch)
        return iter(self._passes)

    def _prefetch(self, start: Position) -> Iterator[Any]:
        """Return batches from the child process, which goes on from epoch to epoch by itself."""
        if self._prefetcher is None or start != self._prefetched:
            if self._prefetcher is not None:
                self._prefetcher.terminate()
            passes = _Passes(self._plan, self._make, self._num_workers)
            passes.start = start
            self._prefetcher = AsyncPrefetcher(passes, **self._async_options)
            self._prefetcher.set_epoch(start.epoch)
        self._prefetched = Position(start.epoch + 1, 0)
        with torch.random.fork_rng(devices=[]):  # the child's seed is drawn, and has no effect here
            return iter(self._prefetcher)


@final
class _Passes:
    """Pass after pass over a plan, in this process or in the prefetcher's child."""

    def __init__(self, plan: Plan, make: Make, num_workers: int) -> None:
        self._plan = plan
        self._make = UserCode(make, "make batches")  # transforms and feature stores are the user's
        self._num_workers = num_workers
        self._epoch = 0
        self._items: tuple[int, Sequence[Any]] | None = None
        self._sampler = _Items()
        self._workers: DataLoader | None = None
        self._latest = 0  # number of the pass that has the workers
        self.start = Position(0, 0)  # where its epoch begins, if that is the one asked for

    def set_epoch(self, epoch: int) -> None:
        self._epoch = epoch

    def items_of(self, epoch: int) -> Sequence[Any]:
        if self._items is None or self._items[0] != epoch:
            self._items = (epoch, self._plan(epoch))
        return self._items[1]

    def __iter__(self) -> Iterator[Any]:
        items = self.items_of(self._epoch)
        if self.start.epoch == self._epoch:
            items = items[self.start.done :]
        if not self._num_workers:
            return map(self._make, items)
        if self._workers is None:
            self._workers = DataLoader(
                Options(),
                _Making(self._make),
                batch_size=None,
                drop_last=False,
                sampler=self._sampler,
                num_workers=self._num_workers,
                persistent_workers=True,
                # torch draws a seed for its workers, which must not come from the user's stream.
                generator=torch.Generator(),
            )
        self._sampler.items = items
        self._latest += 1
        return self._guard(iter(self._workers), self._latest)

    def _guard(self, batches: Iterator[Any], number: int) -> Iterator[Any]:
        """Yield batches while the pass has the workers; torch would go on with the newer one's."""
        while True:
            if number != self._latest:
                raise LoaderError(
                    "this iterator was ended by a newer iter() on the same loader: its workers "
                    "make one pass at a time; use a second loader"
                )
            try:
                batch = next(batches)
            except StopIteration:
                return
            yield batch

    def end_workers(self) -> None:
        self._workers = None


class _Making(torch.utils.data.Dataset[Any]):
    """A dataset that is indexed by work items."""

    def __init__(self, make: Make) -> None:
        self._make = make

    def __getitem__(self, item: Any) -> Any:
        return self._make(item)


class _Items(torch.utils.data.Sampler[Any]):
    """The items of the pass that is asked for; a new pass needs no new workers."""

    items: Sequence[Any] = ()

    def __iter__(self) -> Iterator[Any]:
        return iter(self.items)

    def __len__(self) -> int:
        return len(self.items)
