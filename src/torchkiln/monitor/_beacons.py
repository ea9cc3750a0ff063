"""Reading the beacons of this user's processes; what is damaged is ignored."""

from __future__ import annotations

import contextlib
import mmap
import os
import sys
import time
from dataclasses import dataclass

from torchkiln.core import _beacon_layout as layout
from torchkiln.core._beacon_folder import (
    beacon_names,
    folders,
    open_beacon,
    private_beacon_folder,
)
from torchkiln.core._process_identity import is_running, pid_namespace

# A record is written in less than a microsecond, unless its process has to leave the core in the
# middle. Longer than this, it was stopped there.
_TRIES, _PAUSES, _PAUSE_S = 100, 50, 0.001


@dataclass(frozen=True, slots=True)
class Reading:
    """What the beacon of a living process said at one moment.

    Args:
        header: Who it is.
        process: What it does beside its programs; None if it could not be read.
        programs: By number of their slot.
        at_ns: The moment, by `time.monotonic_ns`.
    """

    header: layout.Header
    process: layout.ProcessRecord | None
    programs: dict[int, layout.SlotRecord]
    at_ns: int

    @property
    def is_local(self) -> bool:
        """Whether the pid means the same here: not in another container."""
        return self.header.namespace == pid_namespace()


@dataclass(frozen=True, slots=True)
class Readings:
    """All beacons at one moment.

    Args:
        living: Of processes that run, by pid.
        num_other_format: Processes that run another version of Torchkiln.
    """

    living: tuple[Reading, ...]
    num_other_format: int = 0


def read_beacons() -> Readings:
    """Read what all processes of this user tell, and remove what dead ones left."""
    living: list[Reading] = []
    num_other = 0
    for place in folders():
        with contextlib.suppress(OSError), private_beacon_folder(place, make=False) as folder:
            for name in beacon_names(folder):
                try:
                    reading = _read(name, folder)
                except layout.OtherFormat:
                    num_other += 1
                else:
                    living += [] if reading is None else [reading]
    living.sort(key=lambda reading: reading.header.pid)
    return Readings(tuple(living), num_other)


def _read(name: str, folder: int) -> Reading | None:
    with open_beacon(name, folder) as descriptor:
        if descriptor is None:
            return None
        status = os.fstat(descriptor)
        if status.st_uid != os.geteuid():
            return None
        header = layout.decode_header(os.pread(descriptor, layout.SIZE, 0))
        # Whoever asks for memory behind the end of a file is killed.
        if header is None or os.fstat(descriptor).st_size != layout.SIZE:
            return None
        is_local = header.namespace == pid_namespace()
        if is_local and not is_running(header.pid, header.start_ticks):
            # A process that was forked behind Python's back keeps the lock of a dead one.
            with contextlib.suppress(OSError):
                os.unlink(name, dir_fd=folder)
            return None
        with mmap.mmap(descriptor, layout.SIZE, access=mmap.ACCESS_READ) as memory:
            return _decode(header, memory)


def _decode(header: layout.Header, memory: mmap.mmap) -> Reading:
    at_ns = time.monotonic_ns()
    found = _copy(memory, layout.PROCESS_AT, layout.PROCESS_BYTES)
    process = None if found is None else layout.decode_process(found)
    programs = {}
    for number in range(layout.NUM_SLOTS):
        found = _copy(memory, layout.slot_at(number), layout.SLOT_BYTES)
        slot = None if found is None else layout.decode_slot(found)
        if slot is not None and slot.state != layout.FREE:
            programs[number] = slot
    return Reading(header, process, programs, at_ns)


def _copy(memory: mmap.mmap, start: int, length: int) -> bytes | None:
    """Return a record that was not being written while it was copied; None: it always was."""
    for _ in range(_PAUSES):
        for _ in range(_TRIES):
            before = memory[start : start + 8]
            record = memory[start : start + length]
            if before == memory[start : start + 8] == record[:8] and not _is_odd(before):
                return record
        time.sleep(_PAUSE_S)
    return None


def _is_odd(word: bytes) -> bool:
    return bool(int.from_bytes(word, sys.byteorder) & 1)
