"""Ctrl-C as a request: finish the step, save, leave."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from types import FrameType, TracebackType
from typing import Any, Self, final

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_NOTICE = b"\nstopping after this step (once more: at once, without saving)\n"


class Interrupted(Exception):  # noqa: N818 - reads as the event it reports
    """The person asked the run to stop, and everything is in order to do so."""


@final
class InterruptGuard:
    """Within the block, the first Ctrl-C or SIGTERM only raises a flag; the second one interrupts.

    Weights, optimiser and loader agree with each other between two calls of a program, not within
    one, so that is where `check` is called. Outside the main thread, and where a signal is ignored
    (as `nohup` does), nothing changes.

    Args:
        speaks: Whether the person is told on standard error that the first one was understood.
    """

    def __init__(self, *, speaks: bool = True) -> None:
        self.requested = False
        self._speaks = speaks
        self._before: dict[signal.Signals, Any] = {}
        self._process = os.getpid()

    def check(self) -> None:
        """Raise `Interrupted` if a signal came."""
        if self.requested:
            raise Interrupted

    @contextlib.contextmanager
    def excusing(self) -> Iterator[None]:
        """Within the block, between two steps, errors after a signal are taken for its effects.

        Ctrl-C reaches the workers of a loader, too, which may fail before anybody calls `check`.
        """
        try:
            yield
        except Exception:
            self.check()
            raise

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in _SIGNALS:
                if signal.getsignal(number) is not signal.SIG_IGN:
                    self._before[number] = signal.signal(number, self._take)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before.clear()

    def _take(self, number: int, frame: FrameType | None) -> None:
        if os.getpid() != self._process:  # a child that was forked meanwhile: none of its business
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        elif self.requested:
            raise KeyboardInterrupt
        else:
            self.requested = True
            if self._speaks:
                # Not print: the signal may have come in the middle of one.
                with contextlib.suppress(OSError):  # nobody reads it any more
                    os.write(2, _NOTICE)
