"""`ResumableLoader`: batches made from a plan, in an order that can be taken up again anywhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, final

import torch
import torch.utils.data

from torchkiln.core import Options, to_choice
from torchkiln.data import AsyncPrefetcher, DataLoader, LoaderError, LoaderMode
from torchkiln.data._user_code import UserCode
from torchkiln.graphs._spec import to_count

Plan = Callable[[int], Sequence[Any]]
Make = Callable[[Any], Any]


class Position(NamedTuple):
    """How many batches of an epoch were handed out."""

    epoch: int
    done: int


def read_state(state: Mapping[str, Any], identity: Mapping[str, Any]) -> Position:
    """Return where a state was taken.

    Args:
        state: What `state_dict` returned, perhaps by way of JSON.
        identity: Facts that it must agree on.

    Raises:
        LoaderError: It is no state, or that of a loader with another order of batches.
    """
    if not isinstance(state, Mapping) or not isinstance(state.get("identity"), Mapping):
        found = sorted(state) if isinstance(state, Mapping) else state
        raise LoaderError(f"{found!r} is no state of a loader; pass what state_dict() returned")
    other = state["identity"]
    for name in sorted(identity.keys() | other.keys()):
        if identity.get(name) != other.get(name):
            raise LoaderError(
                f"the state is from a loader with {name}={other.get(name)!r}, this one has "
                f"{identity.get(name)!r}: its batches are others; make the loader with the same "
                "data and arguments"
            )
    return Position(*(to_count(name, state.get(name), least=0) for name in Position._fields))


def check_reached(position: Position, num_batches: int) -> Position:
    """Raise `LoaderError` for more batches than the epoch has."""
    if position.done > num_batches:
        raise LoaderError(
            f"the state says that {position.done} batches of epoch {position.epoch} are done, but "
            f"it has {num_batches}; pass what state_dict() returned, unchanged"
        )
    return position


class ResumableLoader:
    """Iterates over `make(item)` for the items of `plan(epoch)`; each new iterator is an epoch.

    Subclasses only add a constructor. Nothing here reads or changes torch's global generator: what
    is random must follow from the epoch and the item.

    Args:
        plan: Gives the work items of an epoch for this process, as many in every process. A
            function of the epoch alone; items must be small (index arrays), they are sent to
            workers.
        make: Makes one batch from one item; runs in the workers, so it must be picklable if these
            are spawned.
        identity: Facts that the order depends on, in plain JSON types; a state is only taken up by
            a loader that agrees on them.
        num_workers: torch's worker processes; they persist from epoch to epoch.
        mode: `sync`, or `async` to load ahead in a child process.
        async_options: Arguments of `AsyncPrefetcher`.
    """

    def __init__(
        self,
        plan: Plan,
        make: Make,
        *,
        identity: Mapping[str, Any],
        num_workers: int = 0,
        mode: LoaderMode | str = LoaderMode.SYNC,
        async_options: Mapping[str, Any] | None = None,
    ) -> None:
        self._mode = to_choice((LoaderMode.SYNC, LoaderMode.ASYNC), mode, "mode", LoaderError)
        if async_options and self._mode is LoaderMode.SYNC:
            raise LoaderError(
                f"async_options {dict(async_options)!r} have no meaning in mode sync; "
                "pass mode='async' or leave them out"
            )
        self._plan = plan
        self._make = make
        self._identity = dict(identity)
        self._num_workers = to_count("num_workers", num_workers, least=0)
        self._async_options = dict(async_options or {})
        self._passes = _Passes(plan, make, self._num_workers)
        self._prefetcher: AsyncPrefetcher | None = None
        self._prefetched = Position(0, 0)  # where the prefetcher's next pass begins
        self._next = Position(0, 0)  # where the next iterator begins
        self._reached = Position(0, 0)  # what the program has been given so far

    @property
    def mode(self) -> LoaderMode:
        return self._mode

    @property
    def epoch(self) -> int:
        """The epoch that the next iterator yields."""
        return self._next.epoch

    def set_epoch(self, epoch: int) -> None:
        """Make the next iterator begin `epoch`; without it, each iterator takes the next one."""
        self._next = self._reached = Position(to_count("epoch", epoch, least=0), 0)

    def __len__(self) -> int:
        """Return the number of batches in `epoch`, the same in every process."""
        return len(self._passes.items_of(self._next.epoch))

    # A generator on purpose: an iterator that is never advanced must not count as an epoch.
    def __iter__(self) -> Iterator[Any]:
        start = self._next
        self._next = Position(start.epoch + 1, 0)
        self._reached = start
        batches = self._read_here(start) if self._mode is LoaderMode.SYNC else self._prefetch(start)
        for done, batch in enumerate(batches, start.done + 1):
            self._reached = Position(start.epoch, done)
            yield batch
        self._reached = Position(start.epoch + 1, 0)

    def state_dict(self) -> dict[str, Any]:
        """Return where the loader is, in plain JSON types; the same in every process.

        What counts is the batches that were handed out, not those that workers made ahead.
        """
        epoch, done = self._reached
        if done and done >= len(self._passes.items_of(epoch)):
            epoch, done = epoch + 1, 0
        return {"epoch": epoch, "done": done, "identity": dict(self._identity)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Let the next iterator begin with the batch that followed when `state` was taken.

        Raises:
            LoaderError: The state comes from a loader with another order of batches.
        """
        position = read_state(state, self._identity)
        num_batches = len(self._passes.items_of(position.epoch))
        self._next = self._reached = check_reached(position, num_batches)

    def terminate(self) -> None:
        """End all processes of the loader; a new iterator starts them again."""
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
        self._make = UserCode(make)  # transforms and feature stores are the user's
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
