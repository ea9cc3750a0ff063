"""`Ranks`: the processes of a run, or this one alone, and what they settle with each other."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Self, TypeVar, final

from torchkiln.core import DistributedError, Options, OptionsError, TorchkilnError
from torchkiln.core._pipeline_options import check_processes
from torchkiln.distributed import Group, World, start
from torchkiln.distributed._group import group_of
from torchkiln.training._common_errors import Common, mark_common

T = TypeVar("T")
_END = "the end of the run"


@final
class Ranks:
    """The processes that train one model; with one process, everything is done at once.

    Rank 0 speaks and writes for all. All methods that talk to the others are called by all of them,
    in the same order.

    Args:
        world: Who they are; None: this process is alone.
        timeout_s: How long a process waits for the others before it gives up.
        num_stages: How many processes have a part each of one copy of the model. Those of a copy
            are neighbours, and train on the same data.
    """

    def __init__(
        self, world: World | None = None, timeout_s: float = 120.0, num_stages: int = 1
    ) -> None:
        self.num_stages = num_stages
        self._world = world if world is not None and world.size > 1 else None
        self._group: Group | None = None
        if self._world is not None:
            self._group = group_of(self._world, timeout_s)

    @classmethod
    def of(cls, options: Options) -> Self:
        """Return the processes that `options` of a training speak of.

        Raises:
            OptionsError: They contradict the processes that there are; the message says what to do.
        """
        if options.sync_gradients is False:
            return cls()  # each trains a model of its own, whoever else is there
        world = start()
        expected = (options.num_processes, options.process_id)
        if (world.size, world.rank) != expected:
            raise OptionsError(
                f"this is rank {world.rank} of {world.size} processes, but the options say "
                f"num_processes={options.num_processes} and process_id={options.process_id}; write "
                "options = torchkiln.distributed.start().options(options) before loaders, programs "
                "and trainer are made, or sync_gradients=False to train a model in each process"
            )
        num_stages = options.num_stages if options.is_divided else 1
        return cls(world, options.collective_timeout_s, num_stages)

    def waiting(self, timeout_s: float) -> Ranks:
        """Return the same processes, which wait so long for each other."""
        return Ranks(self._world, timeout_s, self.num_stages)

    def divided(self, num_stages: int) -> Ranks:
        """Return the same processes, of which so many have a part each of one copy of the model.

        A process that is alone has all of it.

        Raises:
            OptionsError: They do not make whole copies.
        """
        if self._group is None:
            return self
        check_processes(num_stages, self.size)
        return Ranks(self._world, self._group.timeout_s, num_stages)

    @property
    def rank(self) -> int:
        return 0 if self._world is None else self._world.rank

    @property
    def size(self) -> int:
        return 1 if self._world is None else self._world.size

    @property
    def copy(self) -> int:
        """Which copy of the model this process has, or a part of."""
        return self.rank // self.num_stages

    @property
    def num_copies(self) -> int:
        """How many copies of the model there are, each of which has a share of the data."""
        return self.size // self.num_stages

    def of_copies(self, by_rank: Sequence[T]) -> list[T]:
        """Return one value for each copy of the model, that of its first stage."""
        return list(by_rank[:: self.num_stages])

    @property
    def is_first(self) -> bool:
        """Whether this process speaks and writes for all."""
        return self.rank == 0

    def options(self, options: Options) -> Options:
        """Return `options` for this process of the run."""
        return options if self._world is None else self._world.options(options)

    @property
    def collective_seconds(self) -> float:
        """Seconds that this process spent in collectives so far."""
        return 0.0 if self._group is None else self._group.seconds

    def is_at(self, place: str) -> None:
        """Say where the run is, for the message about a process that is lost."""
        if self._group is not None:
            self._group.place = place

    # -- one answer for all -----------------------------------------------------------------

    def gather(self, value: T) -> list[T]:
        """Return the value of each process, by rank."""
        return [value] if self._group is None else self._group.gather(value)

    def meet(self, what: str) -> None:
        """Wait until all processes are here, however long that takes."""
        if self._group is not None:
            self._group.meet(what)

    def require_same(self, what: str, value: Any, remedy: str) -> None:
        """Raise DistributedError on all ranks if their values differ."""
        if self._group is not None:
            self._group.require_same(what, value, remedy)

    # -- work -------------------------------------------------------------------------------

    def first_does(self, what: str, work: Callable[[], T]) -> T:
        """Let rank 0 work; return what came of it on all ranks, or raise its error on all."""
        if self._group is None:
            return work()
        value = self._settle(what, work if self.is_first else None)
        result: T = self._group.from_first(value)
        return result

    def all_do(self, what: str, work: Callable[[], T]) -> T:
        """Let every rank work; if it fails for one, raise that error on all."""
        if self._group is None:
            return work()
        result: T = self._settle(what, work)
        return result

    def each_host_once(self, what: str, work: Callable[[], T]) -> T:
        """Let every rank work, one of each host before its others, which find things ready.

        For files that are made when they are first used.
        """
        group = self._group
        if group is None:
            return work()
        result: T = self.all_do(what, lambda: group.one_after_first(what, work))
        return result

    @contextmanager
    def first_enters(self, what: str, make: Callable[[], AbstractContextManager[T]]) -> Iterator[T]:
        """Let rank 0 enter a context; all ranks get what it gives, or raise its error."""
        with ExitStack() as stack:
            yield self.first_does(what, lambda: stack.enter_context(make()))

    def _settle(self, what: str, work: Callable[[], Any] | None) -> Any:
        assert self._group is not None
        value, error = None, None
        if work is not None:
            try:
                value = work()
            except Exception as raised:
                error = raised
        # Work may take longer for some. If one of them was lost meanwhile, this says so.
        self.meet(what)
        told = self._group.gather(None if error is None else _Told.of(error))
        failed = next(((rank, one) for rank, one in enumerate(told) if one is not None), None)
        if failed is None:
            return value
        rank, first = failed
        raise self.common(error if error is not None and rank == self.rank else first.rebuilt(rank))

    def common(self, error: Exception) -> Exception:
        """Return an error that all ranks are about to raise, so that one of them tells it."""
        if self._group is not None:
            mark_common(error, Common(speaks=self.is_first, leave=self.leave))
        return error

    def leave(self) -> None:
        """Wait for the others at the end: a launcher ends all if one of them leaves with an error.

        Who is lost by now is no matter any more.
        """
        with contextlib.suppress(DistributedError):
            self.meet(_END)


@dataclass(frozen=True, slots=True)
class _Told:
    """An error on its way to other processes."""

    kind: type[Exception]
    text: str

    @classmethod
    def of(cls, error: Exception) -> Self:
        # Of the user's code, kinds may be such that other processes cannot make them.
        kind = next(
            base
            for base in (*type(error).__mro__, TorchkilnError)
            if base.__module__.startswith("torchkiln.") or base.__module__ == "builtins"
        )
        text = str(error) if isinstance(error, TorchkilnError) else f"{kind.__name__}: {error}"
        return cls(kind, text)

    def rebuilt(self, rank: int) -> Exception:
        text = self.text if rank == 0 else f"rank {rank}: {self.text}"
        try:
            return self.kind(text)
        except Exception:  # it takes more than a text
            kind = OptionsError if issubclass(self.kind, OptionsError) else TorchkilnError
            return kind(text)
