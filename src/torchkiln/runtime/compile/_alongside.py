"""Compiler commands that run beside others, because nobody needs what they make at once."""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Any, Self, final

from torchkiln.core._threads import on_all_cores, usable_cores


@final
class Alongside:
    """Runs work in a thread while the block goes on; on a single core at once.

    If the block ends with an error, the work is told to stop; else its own errors are raised.
    """

    def __init__(self) -> None:
        self._stopped = threading.Event()
        self._running: list[Future[Any]] = []
        self._pool: ThreadPoolExecutor | None = None

    def __enter__(self) -> Self:
        if len(usable_cores()) > 1:
            self._pool = ThreadPoolExecutor(1, thread_name_prefix="compiler")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is not None:
            self._stopped.set()
        if self._pool is not None:
            self._pool.shutdown(wait=True)
        if error is None:
            self.join()

    def start(self, work: Callable[[], Any]) -> None:
        """Begin `work`; what it calls may ask for `stop_event`."""
        if self._pool is None:
            work()
        else:
            # With the settings of torch that are set for this thread.
            run = contextvars.copy_context().run
            self._running.append(self._pool.submit(run, _unpinned, work, self._stopped))

    def join(self) -> None:
        """Wait for everything that was started, and raise its first error."""
        running, self._running = self._running, []
        for future in running:
            future.result()


_of_thread = threading.local()


def stop_event() -> threading.Event | None:
    """Return what is set if nobody wants this thread's work any more; None if Ctrl-C reaches it."""
    event: threading.Event | None = getattr(_of_thread, "stopped", None)
    return event


def _unpinned(work: Callable[[], Any], stopped: threading.Event) -> Any:
    _of_thread.stopped = stopped
    # The thread that builds may be pinned to one core, which all that it starts would share.
    with on_all_cores():
        return work()
