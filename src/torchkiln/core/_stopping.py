"""Ctrl-C and SIGTERM end a command in order: what it opened is closed, and one line says so.

By default SIGTERM ends a process on the spot: compilers and workers that it started go on without
it, and temporary folders stay. Commands of Torchkiln take it as they take Ctrl-C.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType

_INTERRUPTED, _TERMINATED = 128 + signal.SIGINT, 128 + signal.SIGTERM


class Terminated(KeyboardInterrupt):
    """SIGTERM came. Whoever is prepared for Ctrl-C is prepared for this."""


def run_stoppable(command: Callable[[], int]) -> int:
    """Return the exit code of `command`: its own, or 130 after Ctrl-C, 143 after SIGTERM."""
    came: list[int] = []
    try:
        with _signals_raise(came):
            return command()
    except Terminated:
        return _say("terminated", _TERMINATED)
    except KeyboardInterrupt:
        return _say("interrupted", _INTERRUPTED)
    except Exception:
        # Libraries that are stopped while they are imported may fail with something else.
        if not came:
            raise
        if came[0] == signal.SIGTERM:
            return _say("terminated", _TERMINATED)
        return _say("interrupted", _INTERRUPTED)


@contextlib.contextmanager
def _signals_raise(came: list[int]) -> Iterator[None]:
    """Raise for Ctrl-C and SIGTERM, and note which came; not if somebody else took them."""
    process = os.getpid()

    def stop(number: int, frame: FrameType | None) -> None:
        if os.getpid() != process:  # a child that was forked meanwhile: it just ends
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        came.append(number)
        raise Terminated if number == signal.SIGTERM else KeyboardInterrupt

    before = {}
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGINT, signal.SIGTERM):
            handler = signal.getsignal(number)
            if handler in (signal.SIG_DFL, signal.default_int_handler):
                before[number] = handler
                signal.signal(number, stop)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def signals_deferred() -> Iterator[None]:
    """Let Ctrl-C and SIGTERM wait until the block is done; in other threads they do not come."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []
    before = {
        kind: signal.signal(kind, lambda number, _: came.append(number))
        for kind in (signal.SIGINT, signal.SIGTERM)
        if callable(signal.getsignal(kind)) or signal.getsignal(kind) == signal.SIG_DFL
    }
    try:
        yield
    finally:
        for kind, handler in before.items():
            signal.signal(kind, handler)
        for number in came:
            signal.raise_signal(number)


def _say(text: str, exit_code: int) -> int:
    with contextlib.suppress(OSError):  # nobody reads it any more
        print(text, file=sys.stderr, flush=True)  # noqa: T201
    return exit_code
