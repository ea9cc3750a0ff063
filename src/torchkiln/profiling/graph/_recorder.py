"""Measuring calls of a program: the wall time of each, and the time of every call inside it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from torchkiln.core import Span, add_listener

if TYPE_CHECKING:
    from torchkiln.runtime import Program


@dataclass(slots=True)
class MeasuredCall:
    """One call of a program, in nanoseconds.

    Args:
        wall_ns: From its beginning to its end, without what measuring took.
        entries: The time of every call inside, summed over the runs of an entry point, by its name.
        runs: How often each entry point ran.
        waiting_ns: Time between the call before and this one in which somebody waited for data;
            None where no call came before.
        between_ns: All time between the call before and this one.
        between_computing_ns: How much of it the calling thread computed, instead of sleeping.
    """

    wall_ns: int
    entries: dict[str, np.ndarray]
    runs: dict[str, int]
    waiting_ns: int | None = None
    between_ns: int | None = None
    between_computing_ns: int | None = None

    @property
    def executable_ns(self) -> int:
        """Time inside the executable."""
        return int(sum(times.sum() for times in self.entries.values()))


@dataclass(slots=True)
class CallRecorder:
    """Measures calls; `call` runs one."""

    calls: list[MeasuredCall] = field(default_factory=list)
    _last_end_ns: int | None = None
    _last_end_computed_ns: int = 0
    _entries: dict[str, np.ndarray] = field(default_factory=dict)
    _runs: dict[str, int] = field(default_factory=dict)
    _overhead_ns: int = 0
    _waits: list[tuple[int, int]] = field(default_factory=list)

    def call(self, program: Program, run: Callable[[], Any]) -> Any:
        """Run a call and measure it; one that fails is not counted."""
        self._entries, self._runs, self._overhead_ns = {}, {}, 0
        with program.executor.clocked(self._tell):
            computed = time.thread_time_ns()
            start = time.perf_counter_ns()
            result = run()
            end = time.perf_counter_ns()
        measured = MeasuredCall(end - start - self._overhead_ns, self._entries, self._runs)
        if self._last_end_ns is not None:
            measured.between_ns = start - self._last_end_ns
            measured.between_computing_ns = computed - self._last_end_computed_ns
            measured.waiting_ns = self._waited(self._last_end_ns, start)
        self.calls.append(measured)
        self._last_end_computed_ns = time.thread_time_ns()
        self._last_end_ns = time.perf_counter_ns()
        return result

    def finish(self) -> None:
        """Nothing is left to do: `calls` holds what was measured."""

    def forget_the_loop(self) -> None:
        """Take what comes before the next call for nothing that belongs to a step."""
        self._last_end_ns = None

    def listen(self) -> Callable[[], None]:
        """Note who waits for data from now on; the returned function ends that."""
        return add_listener(self._hear)

    def _tell(self, name: str, durations: Callable[[], np.ndarray]) -> None:
        start = time.perf_counter_ns()
        times = durations()
        self._entries[name] = self._entries[name] + times if name in self._entries else times
        self._runs[name] = self._runs.get(name, 0) + 1
        self._overhead_ns += time.perf_counter_ns() - start

    def _hear(self, span: Span) -> None:
        if span.channel == "data" or "wait for data" in span.label:
            self._waits.append((int(span.start_s * 1e9), int(span.end_s * 1e9)))

    def _waited(self, start: int, end: int) -> int:
        """Return how long anybody waited in a stretch of time; waits may lie in each other."""
        total, reached = 0, start
        for begin, finish in sorted(self._waits):
            begin, finish = max(begin, reached), min(finish, end)
            if finish > begin:
                total += finish - begin
                reached = finish
        self._waits.clear()
        return total


def quiet_half(calls: list[MeasuredCall]) -> list[MeasuredCall]:
    """Return the faster half of the calls, at least one: what others do disturbs only some.

    Their averages add up, which medians of single rows do not.
    """
    ordered = sorted(calls, key=lambda call: call.wall_ns)
    return ordered[: (len(ordered) + 1) // 2]
