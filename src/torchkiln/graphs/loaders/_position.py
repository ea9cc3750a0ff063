"""Where a loader is: which batch comes next, and how to take that up again later."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, final

from torchkiln.core import Options
from torchkiln.core._beacon import with_waits
from torchkiln.data import LoaderError
from torchkiln.data._agreement import require_same_pass
from torchkiln.graphs._spec import to_count
from torchkiln.graphs.loaders._dealing import Dealing


class Position(NamedTuple):
    """How many batches of an epoch were handed out."""

    epoch: int
    done: int


@final
class Bookmark:
    """Keeps the position of a loader that its user sees.

    It is the same in all processes of a run, and counts whole calls of all of them. So it also
    means something to another number of processes, if an update has as many mini-batches there.

    Args:
        identity: Facts that the order of batches depends on, in plain JSON types; a state is only
            taken up by a loader that agrees on them.
        num_batches: Gives the number of batches of an epoch.
        options: Of the program that consumes the batches.
    """

    def __init__(
        self,
        identity: Mapping[str, Any],
        num_batches: Callable[[int], int],
        options: Options | None = None,
    ) -> None:
        self._options = options or Options()
        self._dealing = Dealing(self._options)
        self._identity = {**identity, **self._dealing.identity()}
        self._num_batches = num_batches
        self._next = Position(0, 0)
        self._reached = Position(0, 0)  # what the program has been given so far
        self._running: int | None = None

    @property
    def next_epoch(self) -> int:
        """The epoch that the next iterator yields."""
        return self._next.epoch

    @property
    def running_epoch(self) -> int | None:
        """The epoch of the iterator that is in use, if there is one."""
        return self._running

    def set_epoch(self, epoch: int) -> None:
        """Let the next iterator begin `epoch`."""
        self._next = self._reached = Position(to_count("epoch", epoch, least=0), 0)

    # A generator on purpose: an iterator that is never advanced must not count as an epoch.
    def follow(self, read: Callable[[Position], Iterator[Any]]) -> Iterator[Any]:
        """Yield what `read` gives from the next position on, and count it."""
        start = self._next
        self._agree(start)
        self._reached = start
        self._next = Position(start.epoch + 1, 0)
        self._running = start.epoch
        try:
            for done, batch in enumerate(with_waits(read(start)), start.done + 1):
                self._reached = Position(start.epoch, done)
                yield batch
            self._reached = Position(start.epoch + 1, 0)
        finally:
            if self._running == start.epoch:
                self._running = None

    def _agree(self, start: Position) -> None:
        """Compare notes with the other processes of the run, if there are any."""
        if not self._options.synchronizes:
            return
        facts = {
            "number of batches": self._num_batches(start.epoch),
            "epoch": start.epoch,
            "batches done": start.done,
            **self._identity,
        }
        require_same_pass(self._options, facts)

    def state_dict(self) -> dict[str, Any]:
        """Return the position in plain JSON types; the same in every process.

        What counts is the batches that were handed out, not those that workers made ahead.
        """
        epoch, done = self._reached
        if done and done >= self._num_batches(epoch):
            epoch, done = epoch + 1, 0
        return {"epoch": epoch, "done": done, "identity": dict(self._identity)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Let the next iterator begin with the batch that followed when `state` was taken.

        Args:
            state: What `state_dict` returned, perhaps by way of JSON.

        Raises:
            LoaderError: It is no state, or that of a loader with another order of batches.
        """
        position = self._read(state)
        num_batches = self._num_batches(position.epoch)
        if position.done > num_batches:
            raise LoaderError(
                f"the state says that {position.done} batches of epoch {position.epoch} are done, "
                f"but it has {num_batches}; pass what state_dict() returned, unchanged"
            )
        self._next = self._reached = position

    def _read(self, state: Mapping[str, Any]) -> Position:
        if not isinstance(state, Mapping) or not isinstance(state.get("identity"), Mapping):
            found = sorted(state) if isinstance(state, Mapping) else state
            raise LoaderError(f"{found!r} is no state of a loader; pass what state_dict() returned")
        mine, other = map(self._dealing.rest_of, (self._identity, state["identity"]))
        for name in sorted(mine.keys() | other.keys()):
            if mine.get(name) != other.get(name):
                raise LoaderError(
                    f"the state is from a loader with {name}={other.get(name)!r}, this one has "
                    f"{mine.get(name)!r}: its batches are others; make the loader with the same "
                    "data and arguments"
                )
        self._dealing.require_same_updates(state["identity"])
        return Position(*(to_count(name, state.get(name), least=0) for name in Position._fields))
