"""Trace hooks: everything marks what it does, recorders may listen.

Nothing is recorded until somebody listens. A recorder is one of `add_tracer`; the environment can
ask for one, too (`PVTI_OPTIONS`), which is looked at when the first mark is made. Without anybody
who listens a mark costs a tenth of a microsecond, so steps and batches can be marked, samples not.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from torchkiln.core._extensions import load_recorder

# A recording that began in another process and goes on in this one; made by the recorder.
HANDED_OVER = "TORCHKILN_TRACE"


@dataclass(frozen=True, slots=True)
class Span:
    """One timed stretch of work, in seconds of `time.perf_counter`."""

    channel: str
    label: str
    start_s: float
    end_s: float


class Tracer(Protocol):
    """Somebody who listens; times are nanoseconds of `time.perf_counter`."""

    def begin(self, channel: str, label: str, time_ns: int) -> Any:
        """A stretch of work begins in this thread; what is returned comes back at its end."""

    def end(self, begun: Any, time_ns: int) -> None:
        """A stretch ends; perhaps in another thread, or after one that began before it."""

    def instant(self, channel: str, label: str, time_ns: int) -> None:
        """Something happened."""

    def counter(self, channel: str, name: str, value: float, time_ns: int) -> None:
        """A number that changes with time has this value from now on."""

    def name_process(self, name: str) -> None:
        """People know this process by that name."""


_tracers: tuple[Tracer, ...] = ()
_lock = threading.RLock()
# Whether the environment was looked at.
_is_decided = False
# Known to be without a listener: all that a mark looks at then.
_is_off = False


def _make_lock() -> None:
    global _lock
    _lock = threading.RLock()


# A thread that does not exist in a forked child may hold it.
os.register_at_fork(after_in_child=_make_lock)


class _Nothing:
    """What a mark is while nobody listens: one object for all."""

    __slots__ = ()

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        pass


_NOTHING = _Nothing()


class _Stretch:
    """A mark while somebody listens; it may be entered again, also within itself."""

    __slots__ = ("_begun", "_channel", "_label")

    def __init__(self, channel: str, label: str) -> None:
        self._channel = channel
        self._label = label
        self._begun: list[list[tuple[Tracer, Any]]] = []

    def __enter__(self) -> None:
        now, channel, label = time.perf_counter_ns(), self._channel, self._label
        self._begun.append([(each, each.begin(channel, label, now)) for each in _tracers])

    def __exit__(self, *_: object) -> None:
        now = time.perf_counter_ns()
        # Those who heard of the beginning, and nobody else: listeners come and go.
        for tracer, begun in self._begun.pop() if self._begun else ():
            tracer.end(begun, now)


def span(channel: str, label: str) -> contextlib.AbstractContextManager[None]:
    """Time a block of code for whoever listens."""
    if _is_off or not is_traced():
        return _NOTHING
    return _Stretch(channel, label)


def instant(channel: str, label: str) -> None:
    """Tell whoever listens that something happened just now."""
    if _is_off or not is_traced():
        return
    now = time.perf_counter_ns()
    for tracer in _tracers:
        tracer.instant(channel, label, now)


def counter(channel: str, name: str, value: float) -> None:
    """Tell whoever listens what a number is from now on."""
    if _is_off or not is_traced():
        return
    now = time.perf_counter_ns()
    for tracer in _tracers:
        tracer.counter(channel, name, value, now)


def name_process(name: str) -> None:
    """Tell whoever listens what this process is for."""
    if is_traced():
        for tracer in _tracers:
            tracer.name_process(name)


def is_traced() -> bool:
    """Whether anybody listens: for what takes longer to find out than a mark."""
    global _is_off, _is_decided
    if _is_off:
        return False
    if _is_decided and _tracers:
        return True
    with _lock:
        if not _is_decided:
            _is_decided = True  # first: what is imported now may make marks itself
            load_recorder()
        _is_off = not _tracers
    return not _is_off


def add_tracer(tracer: Tracer) -> Callable[[], None]:
    """Let `tracer` listen from now on; the returned function takes it off again."""
    global _tracers, _is_off
    with _lock:
        _tracers = (*_tracers, tracer)
        _is_off = False

    def remove() -> None:
        global _tracers, _is_off
        with _lock:
            _tracers = tuple(each for each in _tracers if each is not tracer)
            _is_off = _is_decided and not _tracers

    return remove


def hand_over() -> str | None:
    """Return what a new process must be given to `take_over`, to be part of a recording.

    Forked processes are part of it anyway, and so are those that get this one's environment: this
    is for those that are neither, such as children of a fork server that was started before.
    """
    return os.environ.get(HANDED_OVER) if is_traced() else None


def take_over(handed: str | None) -> None:
    """Go on with the recording of the process that started this one."""
    global _is_decided, _is_off
    if handed is None or _tracers:
        return
    with _lock:
        os.environ[HANDED_OVER] = handed
        _is_decided = _is_off = False


Listener = Callable[[Span], None]


def add_listener(listener: Listener) -> Callable[[], None]:
    """Call `listener` with every span that is done; the returned function takes it off again."""
    return add_tracer(_SpanListener(listener))


class _SpanListener:
    """Hands over spans that are done, and nothing else."""

    def __init__(self, listener: Listener) -> None:
        self._listener = listener

    def begin(self, channel: str, label: str, time_ns: int) -> Any:
        return channel, label, time_ns

    def end(self, begun: Any, time_ns: int) -> None:
        channel, label, start_ns = begun
        self._listener(Span(channel, label, start_ns / 1e9, time_ns / 1e9))

    def instant(self, channel: str, label: str, time_ns: int) -> None:
        pass

    def counter(self, channel: str, name: str, value: float, time_ns: int) -> None:
        pass

    def name_process(self, name: str) -> None:
        pass
