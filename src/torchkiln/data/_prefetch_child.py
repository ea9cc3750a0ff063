"""The child process of a prefetcher: load ahead, as far as there is room."""

from __future__ import annotations

import contextlib
import multiprocessing.reduction
import os
import random
import signal
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, assert_never

import numpy as np
import torch
import torch.utils.data

from torchkiln.core import counter, name_process, span, take_over
from torchkiln.data._arena import Arena, make_shared_memory, pack
from torchkiln.data._messages import (
    Begin,
    Failed,
    Finished,
    NewArena,
    Ready,
    Taken,
    ToChild,
    ToParent,
)
from torchkiln.data._regroup import rebatch
from torchkiln.data._torch_reading import (
    cannot_be_sent,
    keep_workers_in_group,
    read_torch_loader,
)
from torchkiln.data._user_code import read_elements

# How often a waiting child looks whether its parent still lives. The end of the connection says so
# at once, unless another process inherited the parent's side of it.
_PARENT_CHECK_S = 2.0
# The number of batches that were sent, and not taken yet as far as this process has heard.
_WAITING = "batches waiting"


class _Stop(BaseException):
    """The parent wants no more; not an Exception, so that datasets do not catch it."""


@dataclass(frozen=True, slots=True)
class ChildSettings:
    """What the child needs besides the data."""

    buffer_size: int
    load_indefinitely: bool
    rebatched_size: int | None
    drop_last: bool
    cores: frozenset[int] | None
    seed: int
    trace: str | None = None  # see `torchkiln.core.hand_over`


def run_child(connection: Connection, source: Any, settings: ChildSettings) -> None:
    """Serve `source` over the connection until the parent goes away or asks to stop."""
    # A group of its own: the parent can end it together with its workers, and Ctrl-C in a terminal
    # reaches the parent alone, which decides what it means.
    os.setpgid(0, 0)
    keep_workers_in_group()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _raise_stop)
    # Processes that the dataset starts must not keep our end open after we are gone.
    os.register_at_fork(after_in_child=connection.close)
    take_over(settings.trace)
    name_process("prefetch")
    # The parent's OpenMP threads do not exist here; torch's own workers do the same.
    torch.set_num_threads(1)
    if settings.cores is not None:
        os.sched_setaffinity(0, settings.cores)
    torch.manual_seed(settings.seed)
    random.seed(settings.seed)
    np.random.seed(settings.seed % 2**32)  # the generator that datasets draw from
    with contextlib.suppress(_Stop):
        _Child(connection, source, settings).serve()
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # it is leaving already


@contextlib.contextmanager
def _leaving_with_parent() -> Iterator[None]:
    """Stop when the other end of the connection is gone: nobody is left to be told.

    Around our own traffic only; a dataset that loses its own connection has failed.
    """
    try:
        yield
    except (EOFError, OSError):
        raise _Stop from None


def _raise_stop(_signal: int, _frame: Any) -> None:
    raise _Stop


class _Child:
    def __init__(self, connection: Connection, source: Any, settings: ChildSettings) -> None:
        self._connection = connection
        self._source = source
        self._settings = settings
        self._parent_pid = os.getppid()
        self._wanted: Begin | None = None
        self._current = Begin(-1, -1)
        self._arenas: list[Arena | None] = []
        self._free: list[int] = []
        self._sent: dict[int, int] = {}  # slot -> generation, until the parent has taken it

    def serve(self) -> None:
        while True:
            while not self._is_stale():
                self._handle(self._receive())
            assert self._wanted is not None
            self._current = self._wanted
            while (num_batches := self._load_pass()) is not None:
                self._tell(Finished(self._current.generation, num_batches))
                # An empty pass would repeat for ever, as fast as it can.
                if not self._settings.load_indefinitely or num_batches == 0:
                    break
                self._current = Begin(self._current.generation + 1, self._current.epoch + 1)

    def _is_stale(self) -> bool:
        return self._wanted is not None and self._wanted.generation > self._current.generation

    def _load_pass(self) -> int | None:
        """Send one pass; return its number of batches, or None if it is not wanted any more."""
        try:
            batches = self._iterate()
            num_batches = 0
            while True:
                if not self._wait_for_room():
                    return None
                try:
                    with span("data", "load batch"):
                        batch = next(batches)
                except StopIteration:
                    return num_batches
                # The parent may have changed its mind while the batch was loading.
                if not self._wait_for_room():
                    return None
                with span("data", "send batch"):
                    self._send(batch)
                counter("data", _WAITING, len(self._sent))
                num_batches += 1
        except _Stop:
            raise
        except BaseException as error:
            summary = f"{type(error).__name__}: {error}"
            self._tell(Failed(self._current.generation, summary, traceback.format_exc()))
            raise _Stop from None

    def _iterate(self) -> Iterator[Any]:
        source = self._source
        if hasattr(source, "set_epoch"):
            source.set_epoch(self._current.epoch)
        if getattr(type(source), "__iter__", None) is torch.utils.data.DataLoader.__iter__:
            batches = read_torch_loader(source)
        else:
            batches = read_elements(source)
        if self._settings.rebatched_size is None:
            return batches
        return rebatch(batches, self._settings.rebatched_size, drop_last=self._settings.drop_last)

    def _wait_for_room(self) -> bool:
        """Read what the parent said, and wait for it while the buffer is full."""
        while True:
            if len(self._sent) >= self._settings.buffer_size:
                with span("data", "wait for room"):
                    self._handle(self._receive())
            elif self._connection.poll():
                self._handle(self._receive())
            else:
                return True
            if self._is_stale():
                return False

    def _receive(self) -> ToChild:
        with _leaving_with_parent():
            while not self._connection.poll(_PARENT_CHECK_S):
                if os.getppid() != self._parent_pid:
                    raise _Stop
            message: ToChild = self._connection.recv()
        return message

    def _tell(self, message: ToParent) -> None:
        with _leaving_with_parent():
            self._connection.send(message)

    def _handle(self, message: ToChild) -> None:
        match message:
            case Begin(generation):
                self._wanted = message
                # Messages keep their order, so the parent has not taken these and never will.
                stale = [slot for slot, sent in self._sent.items() if sent < generation]
                for slot in stale:
                    del self._sent[slot]
                self._free.extend(stale)
            case Taken(slot, released):
                self._sent.pop(slot, None)
                self._free.extend(released)
                counter("data", _WAITING, len(self._sent))
            case _:
                assert_never(message)

    def _send(self, batch: Any) -> None:
        try:
            packed = pack(batch)
        except Exception as error:
            raise cannot_be_sent(batch, error) from error
        if not self._free:
            # Only what waits for the parent is limited; batches that the user keeps cost memory,
            # as they would with any loader, but never block.
            self._arenas.append(None)
            self._free.append(len(self._arenas) - 1)
        slot = self._free.pop()
        arena = self._arenas[slot]
        if arena is None or arena.num_bytes < packed.num_bytes:
            arena = self._arenas[slot] = self._make_arena(slot, packed.num_bytes)
        arena.write(packed)
        self._sent[slot] = self._current.generation
        self._tell(Ready(self._current.generation, slot, packed.payload))

    def _make_arena(self, slot: int, num_bytes: int) -> Arena:
        num_bytes = max(num_bytes, 1)  # empty memory cannot be mapped
        descriptor = make_shared_memory(num_bytes)
        try:
            self._tell(NewArena(slot, num_bytes))
            with _leaving_with_parent():
                # The process id matters on Windows only.
                multiprocessing.reduction.send_handle(
                    self._connection, descriptor, self._parent_pid
                )
            return Arena(descriptor, num_bytes)
        finally:
            os.close(descriptor)
