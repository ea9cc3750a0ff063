"""`Group`: what the processes of a world, or some of them, tell each other."""

from __future__ import annotations

import datetime
import itertools
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, NoReturn, TypeVar, final

import torch.distributed as dist
from torch import Tensor

from torchkiln.core import DistributedError
from torchkiln.distributed._at_exit import at_exit
from torchkiln.distributed._comparison import differences
from torchkiln.distributed._connections import connections
from torchkiln.distributed._forks import let_go_in_children
from torchkiln.distributed._group_part import GroupPart
from torchkiln.distributed._introduction import arrive, introduce, lead_to
from torchkiln.distributed._ordered_sum import Order, OrderedSum
from torchkiln.distributed._packed import packed, unpacked
from torchkiln.distributed._parts import Parts
from torchkiln.distributed._peers import Peers
from torchkiln.distributed._roll_call import ENDED_BY, Failure, call_roll
from torchkiln.distributed._store import Board, StoreGoneError
from torchkiln.distributed._transfers import Transfer, in_memory_order
from torchkiln.distributed._waiting import WaitedInVainError, wait_for
from torchkiln.distributed._world import World

T = TypeVar("T")

_numbers = itertools.count()


@final
class Group:
    """Talks to the other processes; every method is called by all of them, in the same order.

    A process that is alone talks to nobody, and gets its own values back. After a failure the group
    is of no use any more: each further method raises the same error at once.

    Args:
        world: Who they are.
        timeout_s: How long a collective waits for the others.

    Raises:
        DistributedError: From every method, if a process is lost or does not answer in time. The
            message names it, and says where the run was.
    """

    def __init__(self, world: World, timeout_s: float) -> None:
        self.world = world
        self.timeout_s = timeout_s
        # Seconds that this process spent in collectives so far.
        self.seconds = 0.0
        # Where the run is, for the message about a rank that is lost: "update 12".
        self.place = "start"
        self._failure: str | None = None
        self._groups: dict[str, dist.ProcessGroup] = {}
        self._divisions: dict[tuple[tuple[int, ...], ...], GroupPart] = {}
        self._add_in_order = OrderedSum()
        self._parts = Parts(world.size, world.rank)
        self._steps = itertools.count()
        self._process = os.getpid()
        if world.size > 1:
            self._join()

    def sum_(self, flat: Tensor, order: Order = "folded") -> None:
        """Replace the numbers of each process by their sums.

        Args:
            flat: One dimension, contiguous. For "folded", and more than two processes, its length
                is a multiple of their number.
            order: "folded" adds in the order of ranks, so the bits are those of one process that
                adds one after the other; "fastest" leaves the order to the backend.
        """
        with self.talking():
            if self.world.size == 1:
                return
            group = self._group_for(flat)
            # Two numbers have the same sum in either order.
            if order == "fastest" or self.world.size == 2:
                dist.all_reduce(flat, group=group)
            else:
                self._add_in_order(flat, self.world.size, group)

    def sum_own_part_(self, flat: Tensor) -> None:
        """Replace this process' part of the numbers by the sum of all processes, in rank order.

        Args:
            flat: One dimension, contiguous; its length is a multiple of the number of processes.
                What is in the parts of the others afterwards is of no use.
        """
        with self.talking():
            if self.world.size > 1:
                self._parts.sum_own_(flat, self._group_for(flat))

    def gather_parts(self, part: Tensor) -> Iterator[tuple[int, Tensor]]:
        """Yield the parts of all processes, piece by piece: where it begins, and a row for each.

        Every process goes on to the end. A piece is overwritten by the next one.

        Args:
            part: Of this process; one dimension, contiguous, as long on all of them.
        """
        if self.world.size == 1:
            yield 0, part.view(1, -1)
            return
        pieces = self._parts.gather(part, self._group_for(part))
        while True:
            # What is done with a piece is no talk.
            with self.talking():
                piece = next(pieces, None)
            if piece is None:
                return
            yield piece

    def broadcast_(self, tensors: Sequence[Tensor]) -> None:
        """Give the tensors of every process the values of rank 0, in few messages."""
        forms = [(str(tensor.dtype), tuple(tensor.shape)) for tensor in tensors]
        self.require_same("tensors", forms, "make them from the same model on every rank")
        if self.world.size == 1:
            return
        for some, bytes_ in packed(tensors):
            with self.talking():
                dist.broadcast(bytes_, 0, group=self._group_for(bytes_))
            if not self.world.is_first:
                unpacked(bytes_, some)

    def gather(self, value: T) -> list[T]:
        """Return the value of each process, by rank; values are pickled."""
        values: list[Any] = [value] * self.world.size
        with self.talking():
            if self.world.size > 1:
                dist.all_gather_object(values, value, group=self._groups["cpu"])
        return values

    def from_first(self, value: T) -> T:
        """Return the value of rank 0; it is pickled."""
        values = [value]
        with self.talking():
            if self.world.size > 1:
                dist.broadcast_object_list(values, 0, group=self._groups["cpu"])
        return values[0]

    def require_same(self, what: str, value: Any, remedy: str) -> None:
        """Raise DistributedError on all ranks if their values differ.

        Args:
            what: What is compared, as the message names it: "options".
            value: Pickled, and compared with `==`. Of mappings, only what differs is shown.
            remedy: What the user should do.
        """
        values = self.gather(value)
        if any(other != values[0] for other in values):
            raise DistributedError(
                f"{what} must be the same on all ranks: {differences(values)}; {remedy}"
            )

    def meet(self, what: str) -> None:
        """Wait until all processes are here, however long that takes, as long as they live.

        Args:
            what: What they meet for, as the message about a lost one says: "saving".
        """
        if self.world.size == 1:
            return
        with self._at(what):
            self._report(f"meeting/{next(self._steps)}", "")

    def one_after_first(self, what: str, work: Callable[[], T]) -> T:
        """Let one process of each host do the work first, and the others of the host afterwards.

        So what the first one leaves on disk is there for the others. Returns when all are done,
        however long that takes.

        Args:
            what: What is done, as messages name it: "compile".
            work: Done by every process.

        Raises:
            DistributedError: On all processes whose own work did not fail, if that of another did.
        """
        if self.world.size == 1:
            return work()
        return self._each(what, work, first=self._peers.first_of_host())

    def all_at_once(self, what: str, work: Callable[[], T]) -> T:
        """Let all processes do the work at the same time; otherwise like `one_after_first`."""
        return work() if self.world.size == 1 else self._each(what, work, self.world.rank)

    def _each(self, what: str, work: Callable[[], T], first: int) -> T:
        """Do the work after rank `first` has, and wait until all have; all fail if one does."""
        with self._at(what):
            step = f"work/{next(self._steps)}"
            try:
                if first != self.world.rank:
                    self._await({first: f"{step}/{first}"})
                    self._require_done(what, step, [first])
                result = work()
            except BaseException as error:
                with suppress(StoreGoneError):
                    self._board.put(f"{step}/{self.world.rank}", _told(error))
                raise
            self._report(step, "")
            self._require_done(what, step, range(self.world.size))
            return result

    def send(self, tensor: Tensor, to: int, tag: int) -> Transfer:
        """Begin to send a tensor to one process, which must receive it under the same tag.

        Messages to one process under one tag arrive in the order in which they were sent. The
        tensor must not be changed until it has arrived.

        Args:
            tensor: On the CPU, without gaps in its memory.
            to: A rank.
            tag: What it is, from 0.
        """
        with self.talking():
            work = None
            if tensor.numel():
                flat = in_memory_order(tensor)
                work = dist.isend(flat, to, group=self._groups["cpu"], tag=tag)
            return Transfer(work, tensor, self.talking)

    def receive(self, tensor: Tensor, source: int, tag: int) -> Transfer:
        """Begin to receive into a tensor what one process sends with the same form under a tag."""
        with self.talking():
            work = None
            if tensor.numel():
                flat = in_memory_order(tensor)
                work = dist.irecv(flat, source, group=self._groups["cpu"], tag=tag)
            return Transfer(work, tensor, self.talking)

    def divided(self, parts: Sequence[Sequence[int]]) -> GroupPart:
        """Return the part of the group that this process belongs to; called by all processes.

        Args:
            parts: Ranks of each part; every rank is in one of them.
        """
        key = tuple(tuple(part) for part in parts)
        if key not in self._divisions:
            self._divisions[key] = self._divide(key)
        return self._divisions[key]

    def abandon(self, error: BaseException) -> None:
        """Leave the others for good, who may wait for messages of this process.

        For a process that an error took out of the middle of something that all do together: the
        next message of another would be taken for one that it missed.
        """
        if self.world.size == 1 or self._failure is not None:
            return
        words = str(error).splitlines()
        cause = f"{type(error).__name__}: {words[0]}" if words else type(error).__name__
        failure = Failure(f"{self.place}{ENDED_BY}{cause}", cause, None, frozenset())
        call_roll(self._board, self._peers, failure)
        self._failure = (
            f"this process left the others at {self.place} because of {cause}; start all of them "
            "again"
        )

    def close(self) -> None:
        """Leave the group; of no use afterwards."""
        self._failure = self._failure or "the group of processes was closed"
        for group in self._groups.values():
            with suppress(RuntimeError, ValueError):  # the user may have destroyed it already
                dist.destroy_process_group(group)
        self._groups.clear()
        self._divisions.clear()

    def _join(self) -> None:
        """Connect to the other processes; all of them make their groups in the same order."""
        rank, size = self.world.rank, self.world.size
        try:
            self._board = Board(f"torchkiln/{next(_numbers)}", patience_s=self.timeout_s)
        except StoreGoneError as error:
            raise DistributedError(
                f"the store of this run cannot be reached ({error}); start all processes again"
            ) from error
        before = {connection.inode for connection in connections()}
        members = arrive(self._board, rank, size, self.timeout_s)
        self._peers = Peers(rank, size, members, {})
        with self.talking():
            self._groups["cpu"] = self._new_group("gloo")
        found = [connection for connection in connections() if connection.inode not in before]
        try:
            self._peers, led = introduce(self._board, members, rank, found, self.timeout_s)
        except (StoreGoneError, TimeoutError) as error:
            self._fail(error)
        let_go_in_children(led)
        for connection in led:
            connection.notice_silence(self.timeout_s)

    def _divide(self, parts: tuple[tuple[int, ...], ...]) -> GroupPart:
        rank = self.world.rank
        own = next(part for part in parts if rank in part)
        connecting: dist.ProcessGroup | None = None
        before = {connection.inode for connection in connections()}
        limit = datetime.timedelta(seconds=self.timeout_s)
        with self.talking():
            for part in parts:
                if len(part) > 1:  # all processes make all groups, in the same order
                    made = dist.new_group(list(part), timeout=limit, backend="gloo")
                    connecting = made if part == own else connecting
        found = [connection for connection in connections() if connection.inode not in before]
        try:
            led = lead_to(
                self._board, f"part {next(self._steps)}", own, rank, found, self.timeout_s
            )
        except (StoreGoneError, TimeoutError) as error:
            self._fail(error)
        self._peers.take(led)
        let_go_in_children(led.values())
        for connection in led.values():
            connection.notice_silence(self.timeout_s)
        return GroupPart(self, own, connecting)

    def _new_group(self, backend: str) -> dist.ProcessGroup:
        limit = datetime.timedelta(seconds=self.timeout_s)
        group = dist.new_group(timeout=limit, backend=backend)
        assert isinstance(group, dist.ProcessGroup)  # this process is one of it
        return group

    def _group_for(self, tensor: Tensor) -> dist.ProcessGroup:
        kind = tensor.device.type
        if kind not in self._groups:
            # All ranks get here in the same call. gloo copies tensors of other devices to the host.
            backend = "nccl" if kind == "cuda" and dist.is_nccl_available() else "gloo"
            self._groups[kind] = self._new_group(backend)
        return self._groups[kind]

    @contextmanager
    def talking(self) -> Iterator[None]:
        """Count the time of a collective, and explain its failure."""
        self._require_working()
        begin = time.perf_counter()
        try:
            yield
        except RuntimeError as error:
            text = str(error)
            late = "timed out" in text.lower() or "timeout" in text.lower()
            gone = self._peers.gone(trust_connections=not late)
            self._fail(error, waited_s=self.timeout_s if late else None, gone=gone)
        finally:
            self.seconds += time.perf_counter() - begin

    @contextmanager
    def _at(self, what: str) -> Iterator[None]:
        """Name what the run does meanwhile, for messages."""
        self._require_working()
        before, self.place = self.place, what if self.place == "start" else f"{self.place}, {what}"
        try:
            yield
        finally:
            self.place = before

    def _report(self, step: str, text: str) -> None:
        """Say that this process is as far as this step, and wait until all are."""
        try:
            self._board.put(f"{step}/{self.world.rank}", text)
        except StoreGoneError as error:
            self._fail(error)
        self._await({rank: f"{step}/{rank}" for rank in range(self.world.size)})

    def _await(self, keys: Mapping[int, str]) -> None:
        try:
            wait_for(self._board, self._peers, keys, self.timeout_s)
        except WaitedInVainError as error:
            self._fail(error, waited_s=self.timeout_s if error.stopped else None, gone=error.gone)
        except StoreGoneError as error:
            self._fail(error, waited_s=self.timeout_s)

    def _require_done(self, what: str, step: str, ranks: Sequence[int]) -> None:
        for rank in ranks:
            try:
                text = self._board.read(f"{step}/{rank}")
            except StoreGoneError as error:
                self._fail(error)
            if text:
                raise DistributedError(
                    f"{self._peers.named([rank])} failed at {what}: {json.loads(text)}"
                )

    def _fail(
        self, error: Exception, waited_s: float | None = None, gone: Sequence[int] | Any = ()
    ) -> NoReturn:
        cause = str(error).split("] ", 1)[-1].split(". This is typically")[0].splitlines()[0]
        failure = Failure(self.place, cause, waited_s, frozenset(gone))
        self._failure = call_roll(self._board, self._peers, failure)
        raise DistributedError(self._failure) from error

    def _require_working(self) -> None:
        if self._failure is not None:
            raise DistributedError(self._failure)
        if os.getpid() != self._process and self.world.size > 1:
            raise DistributedError(
                f"this process was forked from rank {self.world.rank} and is none of the "
                f"{self.world.size} ranks, so it cannot train with them; train in the process that "
                "called torchkiln.distributed.start(), or with sync_gradients=False"
            )


def group_of(world: World, timeout_s: float) -> Group:
    """Return the group of all processes with this time limit; made once, by all of them."""
    if not _groups:
        # torch's threads must not be left to the end of the interpreter, which aborts then.
        at_exit(_close_groups)
    # A user who destroyed torch's process group and made another one needs new groups, too.
    key = (world, timeout_s, id(dist.group.WORLD) if dist.is_initialized() else 0)
    if key not in _groups:
        _groups[key] = Group(world, timeout_s)
    return _groups[key]


_groups: dict[tuple[World, float, int], Group] = {}


def _close_groups() -> None:
    while _groups:
        _groups.popitem()[1].close()


def _told(error: BaseException) -> str:
    return json.dumps(f"{type(error).__name__}: {error}")
