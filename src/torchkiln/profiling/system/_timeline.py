"""Events as stretches of work within each other: what a viewer draws."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, final

from torchkiln.core import StoreError
from torchkiln.profiling.system._reader import Event
from torchkiln.profiling.system._recorder import CUT, END, HEADER


@dataclass(slots=True, eq=False)
class Stretch:
    """One stretch of work in one thread.

    Args:
        channel: What kind of work it is.
        label: What it is.
        start_us: When it began, on the clock that all processes share.
        parent: What it is a part of; None: nothing.
        depth: How many it is a part of.
        end_us: When it ended.
        within_us: How much of it was spent in its parts.
        is_cut: Whether it was still going on when the recording or its process ended.
    """

    channel: str
    label: str
    start_us: float
    parent: Stretch | None = field(repr=False)
    depth: int
    end_us: float = 0.0
    within_us: float = 0.0
    is_cut: bool = False

    @property
    def duration_us(self) -> float:
        return self.end_us - self.start_us

    @property
    def self_us(self) -> float:
        """Time in none of its parts."""
        return self.duration_us - self.within_us


@dataclass(slots=True, eq=False)
class ProcessTrace:
    """What is known about a process, besides its stretches.

    Args:
        pid: Its number.
        is_main: Whether the recording ends with it.
        name: What people know it by.
        threads: Names by number.
        first_us: Time of its first event.
        last_us: Time of its last event.
        num_events: Without names.
        has_ended: Whether it ended its recording in peace: it was not killed, does not run any
            more, and its disk was not full.
    """

    pid: int
    is_main: bool = False
    name: str = ""
    threads: dict[int, str] = field(default_factory=dict)
    first_us: float = float("inf")
    last_us: float = float("-inf")
    num_events: int = 0
    has_ended: bool = False


@dataclass(frozen=True, slots=True)
class Timed:
    """A stretch that is over, an instant (`stretch` without length) or a counter (`value`)."""

    process: ProcessTrace
    tid: int
    kind: str
    stretch: Stretch
    value: float = 0.0


@final
class Timeline:
    """Follows events, process by process, in the order of their file.

    After all were read, `processes` tells of the processes, and `num_misnested` how many events did
    not nest: a recording has none.
    """

    def __init__(self) -> None:
        self.processes: list[ProcessTrace] = []
        self.num_misnested = 0
        self._open: dict[tuple[int, int], list[Stretch]] = {}

    def follow(self, events: Iterable[Event]) -> Iterator[Timed]:
        """Yield what happened: stretches when they end, so parts before what they are a part of.

        Raises:
            StoreError: An event lacks something.
        """
        process: ProcessTrace | None = None
        for event in events:
            try:
                if event["ph"] == "M" and event["name"] == HEADER:
                    # A file of another process begins; the one before has no more events.
                    yield from self._cut(process)
                    process = ProcessTrace(event["pid"], bool(event["args"]["main"]))
                    self.processes.append(process)
                if process is None:
                    raise KeyError(HEADER)
                yield from self._take(process, event)
            except (KeyError, TypeError, ValueError, IndexError) as error:
                raise StoreError(
                    f"the system profile is damaged: event {str(event)[:120]} lacks {error}; "
                    "record it again"
                ) from error
        yield from self._cut(process)

    def _take(self, process: ProcessTrace, event: Event) -> Iterator[Timed]:
        kind, tid = event["ph"], event["tid"]
        if kind == "M":
            _take_name(process, event)
            return
        now_us = float(event["ts"])
        process.first_us = min(process.first_us, now_us)
        process.last_us = max(process.last_us, now_us)
        process.num_events += 1
        stack = self._open.setdefault((process.pid, tid), [])
        if kind == "E":
            yield from self._end(process, tid, event, now_us)
            return
        stretch = Stretch(
            event["cat"], event["name"], now_us, stack[-1] if stack else None, len(stack), now_us
        )
        if kind == "B":
            stack.append(stretch)
        elif kind == "C":
            yield Timed(process, tid, kind, stretch, float(event["args"][event["name"]]))
        elif kind == "i":
            yield Timed(process, tid, kind, stretch)
        else:
            raise ValueError(f"a known kind of event, it has {kind!r}")

    def _end(self, process: ProcessTrace, tid: int, event: Event, now_us: float) -> Iterator[Timed]:
        stack = self._open[process.pid, tid]
        ended = (event["cat"], event["name"])
        if ended not in [(one.channel, one.label) for one in stack]:
            self.num_misnested += 1
            return
        is_cut = bool(event.get("args", {}).get(CUT))
        while True:
            last = stack[-1]
            is_it = (last.channel, last.label) == ended
            self.num_misnested += not is_it
            yield self._close(process, tid, now_us, is_cut=is_cut)
            if is_it:
                return

    def _close(self, process: ProcessTrace, tid: int, now_us: float, *, is_cut: bool) -> Timed:
        stretch = self._open[process.pid, tid].pop()
        stretch.end_us, stretch.is_cut = now_us, is_cut
        if now_us < stretch.start_us:
            self.num_misnested += 1
        if stretch.parent is not None:
            stretch.parent.within_us += stretch.duration_us
        return Timed(process, tid, "E", stretch)

    def _cut(self, process: ProcessTrace | None) -> Iterator[Timed]:
        """End what a killed process was doing, at its last event."""
        if process is None:
            return
        for (pid, tid), stack in self._open.items():
            while pid == process.pid and stack:
                yield self._close(process, tid, process.last_us, is_cut=True)


def _take_name(process: ProcessTrace, event: dict[str, Any]) -> None:
    what, values = event["name"], event["args"]
    if what == "process_name":
        process.name = str(values["name"])
    elif what == "thread_name":
        process.threads[event["tid"]] = str(values["name"])
    elif what == END:
        process.has_ended = True
