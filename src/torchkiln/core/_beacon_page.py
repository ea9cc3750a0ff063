"""The page of memory that this process shares with monitors: made, filled, and left to no child."""

from __future__ import annotations

import atexit
import contextlib
import mmap
import os
import sys
import threading
import time
import weakref
from pathlib import Path
from typing import Protocol, final

from torchkiln.core import _beacon_layout as layout
from torchkiln.core._beacon_folder import (
    SUFFIX,
    folders,
    make_locked,
    private_beacon_folder,
    remove_leftovers,
)
from torchkiln.core._beacon_public import publish
from torchkiln.core._process_identity import pid_namespace, start_ticks
from torchkiln.core._warnings import warn_user

VARIABLE = "TORCHKILN_BEACON"
_OFF, _ON, _SHARED = "0", "1", "shared"


class SlotOwner(Protocol):
    """A program that tells something about itself."""

    @property
    def last_told_ns(self) -> int:
        """When something last happened to it."""

    @property
    def rests(self) -> bool:
        """Whether it neither runs nor is compiled just now."""

    def detach(self, *, forget: bool = False) -> None:
        """Write nowhere until it is used again.

        Args:
            forget: Also begin to count anew.
        """


@final
class Page:
    """The memory that this process shares with monitors, and who has which part of it."""

    def __init__(self, path: Path, memory: mmap.mmap, locks: list[int], public: Path | None):
        self._view = memoryview(memory)
        self._words = self._view.cast("q")
        self._files = [path, *([public] if public else [])]
        self._locks = locks
        self._pid = os.getpid()
        self._owners: list[weakref.ref[SlotOwner] | None] = [None] * layout.NUM_SLOTS
        self._sequence = 0
        self._depth = 0
        self._since_ns = self._waiting_ns = 0
        self._samples = self._trained_ns = self._interval_ns = self._num_last = 0
        self._epoch = self._num_epochs = 0
        self._loss = float("nan")
        self._write()

    # -- programs ---------------------------------------------------------------------------

    def take_slot(self, owner: SlotOwner) -> tuple[memoryview, memoryview] | None:
        """Return the bytes and the words of a slot; None if programs at work have all of them."""
        with _making:
            number = self._free_slot()
            if number is None:
                return None
            return self._give(number, owner)

    def _give(self, number: int, owner: SlotOwner) -> tuple[memoryview, memoryview]:
        reference = weakref.ref(owner, lambda _: self._leave(number, reference))
        self._owners[number] = reference
        start = layout.slot_at(number)
        part = self._view[start : start + layout.SLOT_BYTES]
        return part, part.cast("q")

    def _free_slot(self) -> int | None:
        owners = [None if ref is None else ref() for ref in self._owners]
        for number, owner in enumerate(owners):
            if owner is None:
                return number
        idle = [(owner.last_told_ns, n) for n, owner in enumerate(owners) if owner and owner.rests]
        if not idle:
            return None
        number = min(idle)[1]
        owner = owners[number]
        assert owner is not None
        owner.detach()  # it takes another slot when it is used again
        return number

    def _leave(self, number: int, reference: weakref.ref[SlotOwner]) -> None:
        # Called by the garbage collector, wherever the process happens to be.
        if self._owners[number] is reference and os.getpid() == self._pid:
            self._owners[number] = None
            self._words[layout.slot_at(number) // 8 + 2] = layout.FREE

    def drop_programs(self) -> None:
        """Take their slots away from all programs: in a forked child they are the parent's."""
        for reference in self._owners:
            owner = None if reference is None else reference()
            if owner is not None:
                owner.detach(forget=True)

    # -- the process ------------------------------------------------------------------------

    def begin_wait(self) -> None:
        self._depth += 1
        if self._depth == 1:
            self._since_ns = time.monotonic_ns()
            self._words[layout.PROCESS_AT // 8 + layout.PROCESS_SINCE] = self._since_ns

    def end_wait(self) -> None:
        if not self._depth:
            return  # it began before the beacon was made
        self._depth -= 1
        if not self._depth:
            self._waiting_ns += time.monotonic_ns() - self._since_ns
            self._since_ns = 0
            self._write()

    def tell_step(self, samples: int, loss: float, epoch: int, num_epochs: int) -> None:
        now = time.monotonic_ns()
        self._interval_ns = now - self._trained_ns if self._trained_ns else 0
        self._trained_ns, self._num_last = now, samples
        self._samples += samples
        self._loss, self._epoch, self._num_epochs = loss, epoch, num_epochs
        self._write()

    def _write(self) -> None:
        words, start = self._words, layout.PROCESS_AT // 8
        self._sequence = sequence = self._sequence + 2
        words[start] = sequence - 1
        layout.PROCESS.pack_into(
            self._view,
            layout.PROCESS_AT,
            sequence - 1,
            self._since_ns,
            self._waiting_ns,
            self._samples,
            self._trained_ns,
            self._interval_ns,
            self._num_last,
            self._epoch,
            self._num_epochs,
            self._loss,
        )
        words[start] = sequence

    # -- the end ----------------------------------------------------------------------------

    def close(self) -> None:
        """Let go of the locks, and remove the files if they are this process' own."""
        if os.getpid() == self._pid:
            for path in self._files:
                with contextlib.suppress(OSError):
                    path.unlink()
        for lock in self._locks:
            with contextlib.suppress(OSError):
                os.close(lock)
        self._locks = []


page: Page | None = None
_is_off = False  # it was tried, and there is none
_making = threading.Lock()


def get_page() -> Page | None:
    """Return the beacon of this process, made now if there is none; None: it is off."""
    global page, _is_off
    if page is not None or _is_off:
        return page
    with _making:
        if page is None and not _is_off:
            try:
                page = _make_page()
            except Exception:  # whatever it is, the run goes on without
                page = None
            _is_off = page is None
    return page


def _make_page() -> Page | None:
    wanted = os.environ.get(VARIABLE, "").strip().lower() or _ON
    if wanted not in (_OFF, _ON, _SHARED):
        warn_user(f"{VARIABLE} must be 0, 1 or shared, got {wanted!r}; it is taken for 1")
    if wanted == _OFF:
        return None
    _stay_with_this_process()
    pid = os.getpid()
    header = layout.Header(
        pid=pid,
        namespace=pid_namespace(),
        start_ticks=start_ticks(pid) or 0,
        made_ns=time.time_ns(),
        command=_command(),
    )
    for folder in folders():
        with contextlib.suppress(OSError):
            path, memory, lock = _make_file(folder, header)
            break
    else:
        return None
    public, locks = None, [lock]
    if wanted == _SHARED:
        with contextlib.suppress(OSError):
            public, public_lock = publish(pid, header.start_ticks)
            locks.append(public_lock)
    return Page(path, memory, locks, public)


def _make_file(folder: Path, header: layout.Header) -> tuple[Path, mmap.mmap, int]:
    with private_beacon_folder(folder, make=True) as descriptor:
        remove_leftovers(descriptor)
        name, lock = make_locked(descriptor, f"{header.pid}-", SUFFIX, 0o600)
        try:
            # Now, not at the first write: memory that is full would end the process there.
            os.posix_fallocate(lock, 0, layout.SIZE)
            # Opened once more: children inherit mappings, and a mapping keeps its descriptor's
            # lock. This one has none.
            mapped = os.open(name, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=descriptor)
            try:
                memory = mmap.mmap(mapped, layout.SIZE)
            finally:
                os.close(mapped)
            memory[: layout.HEADER.size] = header.encode()
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(name, dir_fd=descriptor)
            os.close(lock)
            raise
    return folder / name, memory, lock


def _stay_with_this_process() -> None:
    global _is_registered
    if not _is_registered:
        os.register_at_fork(after_in_child=_forget)
        atexit.register(_close)
        _is_registered = True


_is_registered = False


def _forget() -> None:
    """In a forked child: keep neither the parent's lock nor its memory."""
    global page, _is_off, _making
    _making = threading.Lock()  # a thread that is not here may have held it
    inherited, page, _is_off = page, None, False
    if inherited is not None:
        inherited.close()
        inherited.drop_programs()


def _close() -> None:
    global page, _is_off
    ended, page, _is_off = page, None, True
    if ended is not None:
        ended.drop_programs()
        ended.close()


def _command() -> str:
    """Return what was called, as a person would write it."""
    words = list(sys.argv) or [""]
    words[0] = os.path.basename(words[0]) if words[0] not in ("", "-c", "-m") else "python"
    if words[0] == "__main__.py":
        words[0] = os.path.basename(os.path.dirname(sys.argv[0]))
    return " ".join(words)
