"""`Watch`: looks at all beacons again and again, and tells what happened in between."""

from __future__ import annotations

import collections
import os
import time
from typing import final

from torchkiln.core import _beacon_layout as layout
from torchkiln.core._beacon_public import read_public_lines
from torchkiln.core._process_identity import seconds_since
from torchkiln.monitor import _rates
from torchkiln.monitor._beacons import Reading, read_beacons
from torchkiln.monitor._resources import ResourceReader, name_of_user
from torchkiln.monitor._status import (
    MachineStatus,
    OtherProcess,
    ProcessStatus,
    ProgramStatus,
    ResourceStatus,
    State,
    TrainingStatus,
)

# How far rates and shares look back: short enough to see a change, long enough to be steady.
_WINDOW_S = 5.0


@final
class Watch:
    """Remembers the readings of the last seconds; each `look` compares with the oldest of them.

    Args:
        window_s: How many seconds; 0 compares with the last look.
    """

    def __init__(self, window_s: float = _WINDOW_S) -> None:
        self._window_ns = int(window_s * 1e9)
        self._resources = ResourceReader()
        self._past: collections.deque[tuple[int, dict[tuple[int, int], Reading]]] = (
            collections.deque()
        )

    def look(self) -> MachineStatus:
        """Return what runs now."""
        readings = read_beacons()
        at_ns = time.monotonic_ns()
        while len(self._past) > 1 and at_ns - self._past[1][0] >= self._window_ns:
            self._past.popleft()
        first_ns, before = self._past[0] if self._past else (at_ns, {})
        found = []
        for reading in readings.living:
            status = self._describe(reading, before.get(_key(reading)))
            found += [] if status is None else [status]
        self._past.append((at_ns, {_key(reading): reading for reading in readings.living}))
        return MachineStatus(
            processes=tuple(found),
            others=_others(),
            num_other_format=readings.num_other_format,
            seconds=(at_ns - first_ns) / 1e9 if before or first_ns != at_ns else None,
        )

    def _describe(self, reading: Reading, before: Reading | None) -> ProcessStatus | None:
        header = reading.header
        resources = None
        if reading.is_local:
            resources = self._resources.read(header.pid, header.start_ticks)
            if resources is None:
                return None  # it ended a moment ago
        return describe_process(reading, before, resources)


def read_programs(seconds: float = 1.0) -> MachineStatus:
    """Return what runs, with rates and shares over so many seconds."""
    watch = Watch()
    first = watch.look()
    if not first.processes:
        return first
    time.sleep(seconds)
    return watch.look()


def describe_process(
    reading: Reading, before: Reading | None, resources: ResourceStatus | None
) -> ProcessStatus:
    """Return what a process does.

    Args:
        reading: What its beacon says.
        before: What it said earlier; None: nobody looked.
        resources: What it takes; None: nobody knows.
    """
    header, process = reading.header, reading.process
    programs = tuple(
        _describe_program(slot, before, number, reading)
        for number, slot in reading.programs.items()
    )
    waiting = None
    if before is not None and process is not None and before.process is not None:
        waiting = _rates.share(
            _rates.waiting_ns(process, reading.at_ns),
            _rates.waiting_ns(before.process, before.at_ns),
            reading.at_ns - before.at_ns,
        )
    waits_now = process is not None and bool(process.waiting_since_ns)
    is_stopped = resources is not None and resources.is_stopped
    local = reading.is_local and header.start_ticks
    return ProcessStatus(
        pid=header.pid,
        command=header.command,
        user=name_of_user(),
        seconds=max(
            seconds_since(header.start_ticks) if local else time.time() - header.made_ns / 1e9, 0.0
        ),
        state=_state(programs, waiting, waits_now=waits_now, is_stopped=is_stopped),
        phase=next((program.phase for program in programs if program.phase), ""),
        waiting_share=waiting,
        programs=programs,
        training=_describe_training(reading, before),
        resources=resources,
    )


def _describe_program(
    slot: layout.SlotRecord, before: Reading | None, number: int, reading: Reading
) -> ProgramStatus:
    at_ns = reading.at_ns
    earlier = None if before is None else before.programs.get(number)
    if earlier is not None and earlier.number != slot.number:
        earlier = None  # another program had the slot
    now = _rates.steps_of(slot)
    executing = None
    if before is not None and earlier is not None:
        executing = _rates.share(
            _rates.executing_ns(slot, at_ns),
            _rates.executing_ns(earlier, before.at_ns),
            at_ns - before.at_ns,
        )
    state: State = "idle"
    if slot.state == layout.COMPILING:
        state = "compiling"
    elif slot.since_ns or _rates.is_moving(now, at_ns):
        state = "running"
    return ProgramStatus(
        name=slot.name,
        kind=slot.kind,
        backend=slot.backend,
        device=slot.device,
        source=slot.source,
        state=state,
        phase=slot.phase if state == "compiling" else "",
        rank=slot.rank,
        num_ranks=slot.num_ranks,
        calls=slot.calls,
        steps=slot.steps,
        steps_per_s=_rates.rate(now, None if earlier is None else _rates.steps_of(earlier), at_ns),
        executing_share=executing,
    )


def _describe_training(reading: Reading, before: Reading | None) -> TrainingStatus | None:
    process = reading.process
    if process is None or not process.trained_ns:
        return None
    earlier = None if before is None else before.process
    return TrainingStatus(
        epoch=process.epoch,
        num_epochs=process.num_epochs,
        loss=process.loss,
        samples=process.samples,
        samples_per_s=_rates.rate(
            _rates.samples_of(process),
            None if earlier is None else _rates.samples_of(earlier),
            reading.at_ns,
        ),
    )


def _state(
    programs: tuple[ProgramStatus, ...],
    waiting_share: float | None,
    *,
    waits_now: bool,
    is_stopped: bool,
) -> State:
    """Return what a process does most of the time, not what it does in this very moment."""
    if is_stopped:
        return "stopped"
    states = {program.state for program in programs}
    if "compiling" in states:
        return "compiling"
    executing = sum(program.executing_share or 0.0 for program in programs)
    waits = waits_now if waiting_share is None else waiting_share > max(executing, 0.01)
    if waits:
        return "waiting for data"
    return "running" if "running" in states else "idle"


def _others() -> tuple[OtherProcess, ...]:
    own = os.geteuid()
    lines = [line for line in read_public_lines() if line.uid != own]
    return tuple(
        OtherProcess(
            pid=line.pid, user=name_of_user(line.uid), seconds=seconds_since(line.start_ticks)
        )
        for line in lines
    )


def _key(reading: Reading) -> tuple[int, int]:
    return reading.header.pid, reading.header.made_ns
