"""The parent's side of a prefetching process: start it, talk to it, notice its death, end it."""

from __future__ import annotations

import collections
import contextlib
import enum
import multiprocessing
import multiprocessing.connection
import multiprocessing.reduction
import multiprocessing.util
import os
import signal
import sys
import time
from typing import Any, final

import torch

from torchkiln.core import WorkerError
from torchkiln.data._arena import Arena
from torchkiln.data._messages import Failed, Finished, NewArena, Ready, Taken, ToChild, ToParent
from torchkiln.data._prefetch_child import ChildSettings, run_child
from torchkiln.data._process_end import describe_end
from torchkiln.data._socket_names import use_cleaned_folder
from torchkiln.data._stopped import describe_stopped, watch_stopped
from torchkiln.data._unpicklable import find_unpicklable

# A child that is asked to stop leaves at once, unless it is deep in foreign code.
_STOP_GRACE_S = 3.0
# The connection ends with the child, so this only matters if somebody else holds it open.
_CHILD_CHECK_S = 1.0


class StartMethod(enum.Enum):
    """How the child process comes into being."""

    AUTO = "auto"  # fork, or forkserver where fork is unsafe
    FORK = "fork"  # a copy of this process: needs no picklable data, no main guard
    FORKSERVER = "forkserver"  # a clean process: data is pickled, scripts need a main guard
    SPAWN = "spawn"  # the same, started anew each time


@final
class ChildHandle:
    """The parent's side of one child process."""

    def __init__(self, source: Any, start_method: StartMethod, settings: ChildSettings) -> None:
        self._method = resolve_start_method(start_method)
        context: Any = multiprocessing.get_context(self._method.value)
        self._connection, theirs = context.Pipe(duplex=True)
        self._process = context.Process(
            target=run_child,
            args=(theirs, source, settings),
            name="torchkiln-prefetch",
            # Not a daemon: those may not have torch workers of their own.
            daemon=False,
        )
        self._arenas: dict[int, Arena] = {}
        # Filled from finalizers, which may run anywhere, even in the middle of a send: so they
        # only append, and `take` passes it on.
        self._released: collections.deque[int] = collections.deque()
        try:
            if self._method is StartMethod.FORKSERVER:
                use_cleaned_folder()
            self._process.start()
        except Exception as error:
            self._connection.close()
            culprit = find_unpicklable(source, "dataset")
            reason = f"{type(error).__name__}: {error}; use start_method='fork'"
            if culprit is not None:
                reason = f"{culprit}; make it picklable, or use start_method='fork'"
            raise WorkerError(
                f"the prefetching process could not be started by {self._method.value!r}: {reason}"
            ) from error
        finally:
            theirs.close()
        # multiprocessing joins its children when the interpreter exits, so a finalizer of any
        # other kind could come too late. It does nothing in processes forked from this one.
        self._finalizer = multiprocessing.util.Finalize(
            self, _stop, args=(self._process, self._connection), exitpriority=100
        )
        self._stopped = watch_stopped(self, [self._process.pid])

    def is_alive(self) -> bool:
        return bool(self._process.is_alive())

    def close(self) -> None:
        self._finalizer()

    def send(self, message: ToChild) -> None:
        # If the child is gone, what it said last explains why, and is still to be read.
        with contextlib.suppress(OSError):
            self._connection.send(message)

    def receive(self) -> Ready | Finished | Failed:
        """Return what the child says next.

        Raises:
            WorkerError: The child ended without a word, or was stopped and is ended.
        """
        while True:
            try:
                while not self._connection.poll(_CHILD_CHECK_S):
                    # A dead child's last words can be in the connection still.
                    if not self.is_alive() and not self._connection.poll():
                        raise EOFError
                message: ToParent = self._connection.recv()
                if not isinstance(message, NewArena):
                    return message
                self._map(message)
            except (EOFError, OSError):
                raise WorkerError(self._describe_death()) from None

    def take(self, slot: int, payload: bytes) -> Any:
        """Return the batch in `slot`, and let the child go on."""
        released = tuple(self._released.popleft() for _ in range(len(self._released)))
        self.send(Taken(slot, released))
        release = self._released
        return self._arenas[slot].read(payload, lambda: release.append(slot))

    def _map(self, message: NewArena) -> None:
        descriptor = multiprocessing.reduction.recv_handle(self._connection)
        try:
            self._arenas[message.slot] = Arena(descriptor, message.num_bytes)
        finally:
            os.close(descriptor)

    def _describe_death(self) -> str:
        _wait(self._process)
        if self._stopped:
            return f"the prefetching {describe_stopped(self._stopped[0])}"
        how, remedy = describe_end(self._process.exitcode)
        if (self._process.exitcode or 0) >= 0 and self._method is not StartMethod.FORK:
            remedy += (
                f"; with start method {self._method.value!r} the script that makes the loader "
                "must do so under `if __name__ == '__main__':`"
            )
        return f"the prefetching process (pid {self._process.pid}) {how}; {remedy}"


def _stop(process: Any, connection: multiprocessing.connection.Connection) -> None:
    connection.close()
    process.terminate()
    _wait(process)
    # Whatever is left of its group: a child deep in foreign code, or the workers of a killed one.
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    if process.is_alive():  # before it had a group of its own
        process.kill()
    process.join()
    process.close()


def _wait(process: Any) -> None:
    """Wait for the end of the process itself.

    `join` with a timeout waits for a pipe, which workers that outlive the process hold open.
    """
    deadline_s = time.monotonic() + _STOP_GRACE_S
    while process.is_alive() and time.monotonic() < deadline_s:
        time.sleep(0.001)


def resolve_start_method(method: StartMethod) -> StartMethod:
    """Return the method that AUTO stands for here and now."""
    if method is not StartMethod.AUTO:
        return method
    # A forked copy of a CUDA context cannot be used, nor safely destroyed; and system libraries of
    # macOS do not survive a fork. Not Python's own default, which gave up fork on Linux in 3.14:
    # scripts without a main guard are worth more to us.
    can_fork = sys.platform == "linux"
    return (
        StartMethod.FORKSERVER if torch.cuda.is_initialized() or not can_fork else StartMethod.FORK
    )
