"""Attempts in a forked child: what crashes, hangs or takes all memory there is told by its number.

Native parsers (HDF5, safetensors, torch's zip) may end the process that they run in. The child
notes each case before it attempts it; where it ends early, another child goes on with the next.
"""

from __future__ import annotations

import json
import mmap
import os
import resource
import signal
import struct
import traceback
import warnings
from collections.abc import Callable, Sequence
from typing import Any

# Of one attempt; the slowest takes a tenth of a second when the machine is idle.
_PATIENCE_SECONDS = 60
# Above what the process has when it is forked. No file here has more than a megabyte.
_MORE_BYTES = 1 << 30
_MOST_HARMS = 20


def harms(cases: Sequence[Any], attempt: Callable[[Any], str | None]) -> list[str]:
    """Return what went wrong, with the number of its case; an attempt returns None if all is well.

    Whatever an attempt raises is harm, too, as is taking too much memory.
    """
    found: list[str] = []
    with mmap.mmap(-1, 8) as progress:
        begin = 0
        while begin < len(cases) and len(found) < _MOST_HARMS:
            reader, writer = os.pipe()
            child = os.fork()
            if not child:
                _be_the_child(cases, begin, attempt, progress, reader, writer)
            os.close(writer)
            told, status = _heard(child, reader)
            found += [json.loads(line) for line in told.splitlines()]
            (current,) = struct.unpack("q", progress[:])
            if current == len(cases):
                break
            found.append(f"case {current}: {_ending(status)}")
            begin = current + 1
    return found


def _heard(child: int, reader: int) -> tuple[bytes, int]:
    try:
        with os.fdopen(reader, "rb") as pipe:
            told = pipe.read()
    except BaseException:  # a test that is interrupted leaves nobody behind
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        raise
    return told, os.waitpid(child, 0)[1]


def _ending(status: int) -> str:
    if not os.WIFSIGNALED(status):
        return f"the process ended with {os.waitstatus_to_exitcode(status)}"
    if os.WTERMSIG(status) == signal.SIGALRM:
        return f"nothing came of it in {_PATIENCE_SECONDS} seconds"
    return f"the process was ended by {signal.Signals(os.WTERMSIG(status)).name}"


def _be_the_child(
    cases: Sequence[Any],
    begin: int,
    attempt: Callable[[Any], str | None],
    progress: mmap.mmap,
    reader: int,
    writer: int,
) -> None:
    try:
        os.close(reader)
        _limit_memory()
        # The default action of an alarm ends the process, whatever native code is busy with.
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        found = 0
        for number in range(begin, len(cases)):
            if found == _MOST_HARMS:
                break
            progress[:] = struct.pack("q", number)
            signal.alarm(_PATIENCE_SECONDS)
            harm = _attempted(attempt, cases[number])
            if harm is not None:
                found += 1
                os.write(writer, json.dumps(f"case {number}: {harm}").encode() + b"\n")
        progress[:] = struct.pack("q", len(cases))
    finally:
        os._exit(0)


def _attempted(attempt: Callable[[Any], str | None], case: Any) -> str | None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return attempt(case)
    except BaseException as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        notes = " ".join(getattr(error, "__notes__", ()))
        where = f"{last.filename}:{last.lineno}"
        return f"{type(error).__name__} in {where}: {str(error)[:300]} {notes}"


def _limit_memory() -> None:
    import torch

    # Threads do not survive a fork, and whoever waits for them does so for ever.
    torch.set_num_threads(1)
    with open("/proc/self/statm") as file:
        size = int(file.read().split()[0]) * resource.getpagesize()
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (size + _MORE_BYTES, hard))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def ran_out_of_memory(error: BaseException | None) -> bool:
    """Whether an error was made of a MemoryError: an absurd allocation was tried."""
    while error is not None:
        if isinstance(error, MemoryError):
            return True
        error = error.__cause__ or error.__context__
    return False
