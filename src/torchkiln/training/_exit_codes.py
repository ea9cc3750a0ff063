"""Exit codes, and errors as one line on standard error. No torch up here."""

from __future__ import annotations

import enum
import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

from torchkiln.core import (
    DistributedError,
    OptionsError,
    ShortOfMemory,
    TorchkilnError,
    run_stoppable,
)
from torchkiln.core._plain_warnings import plain_messages
from torchkiln.training._common_errors import common_of

if TYPE_CHECKING:
    from torchkiln.report import RunResult


class ExitCode(enum.IntEnum):
    """How a program ended, to whoever started it; 143 is SIGTERM outside of training."""

    OK = 0
    FAILED = 1
    USAGE = 2
    INTERRUPTED = 130


_BY_STATUS = {
    "finished": ExitCode.OK,
    "failed": ExitCode.FAILED,
    "interrupted": ExitCode.INTERRUPTED,
}


def exit_code(result: RunResult) -> ExitCode:
    """Return what a program should end with: `sys.exit(exit_code(result))`."""
    return _BY_STATUS[result.status]


def run_command(command: Callable[[], int], prog: str, memory_remedy: str) -> int:
    """Run a command to its exit code; errors that name a remedy are printed without a traceback.

    Args:
        command: Returns its exit code.
        prog: What the program is called.
        memory_remedy: What helps if memory is not enough.

    Returns:
        Its own code, or 2 for a wrong command line, 1 for a run that failed, 130 after Ctrl-C, 143
        after SIGTERM. A training that was interrupted says so by its own code.
    """
    with plain_messages():
        return run_stoppable(lambda: _run(command, prog, memory_remedy))


def _run(command: Callable[[], int], prog: str, memory_remedy: str) -> int:
    try:
        code = command()
        sys.stdout.flush()  # here, where a closed pipe is understood
        return code
    except OptionsError as error:
        return _complain(f"{prog}: {error}\nMore: {prog} --help", ExitCode.USAGE, error)
    except ShortOfMemory as error:
        return _complain(f"{prog}: {error.found}; {memory_remedy}", ExitCode.FAILED, error)
    except TorchkilnError as error:
        return _complain(f"{prog}: {error}", ExitCode.FAILED, error)
    except MemoryError as error:
        text = f"{prog}: not enough memory ({error}); {memory_remedy}"
        return _complain(text, ExitCode.FAILED, error)
    except KeyboardInterrupt as stop:
        lost = _lost_before(stop)
        if lost is None:
            raise
        return _complain(f"{prog}: {lost}", ExitCode.FAILED, lost)
    except BrokenPipeError:
        # The reader (head, less) has seen enough. Python would complain once more when it flushes.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return ExitCode.FAILED


def _lost_before(stop: KeyboardInterrupt) -> DistributedError | None:
    """Return the error about a lost process after which a signal came; None: there was none.

    A launcher that loses a process sends SIGTERM to the others, which are about to say who it was.
    """
    error: BaseException | None = stop
    while error is not None:
        if isinstance(error, DistributedError):
            return error
        error = error.__context__
    return None


def _complain(text: str, code: ExitCode, error: Exception) -> int:
    """Tell what is wrong; of several processes that all have the same error, one does."""
    common = common_of(error)
    if common is None or common.speaks:
        print(text, file=sys.stderr, flush=True)  # noqa: T201
    if common is not None:
        common.leave()
    return code
