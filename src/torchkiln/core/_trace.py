"""Trace hooks: the runtime marks what it does, a recorder may listen.

Nothing is recorded until somebody calls `add_listener`; a span then costs two clock reads and one
call per listener.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Span:
    """One timed stretch of work, in seconds of `time.perf_counter`."""

    channel: str
    label: str
    start_s: float
    end_s: float


Listener = Callable[[Span], None]
_listeners: list[Listener] = []


def add_listener(listener: Listener) -> Callable[[], None]:
    """Call `listener` with every span from now on; the returned function takes it off again."""
    _listeners.append(listener)
    return lambda: _listeners.remove(listener)


@contextlib.contextmanager
def span(channel: str, label: str) -> Iterator[None]:
    """Time a block of code for whoever listens."""
    if not _listeners:
        yield
        return
    start = time.perf_counter()
    try:
        yield
    finally:
        record = Span(channel, label, start, time.perf_counter())
        for listener in list(_listeners):
            listener(record)
