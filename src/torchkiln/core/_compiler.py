"""Running a compiler so that neither half of its output nor the compiler itself is left behind.

`g++` is a driver: it starts other programs, which go on if it is killed, and it keeps files in the
temporary directory between them.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from torchkiln.core._files import atomic_path
from torchkiln.core._stopping import signals_deferred

# A driver that is told to stop removes its temporary files, which takes a moment.
_STOP_GRACE_S = 5.0
_LOOK_EVERY_S = 0.1


def run_compiler(
    command: Sequence[str],
    output: Path,
    *,
    cwd: str | None = None,
    timeout: float | None = None,
    finish: Callable[[Path], None] | None = None,
    own: bool = True,
    stopped: threading.Event | None = None,
) -> None:
    """Run `command` with `-o` and a file that becomes `output` if the compiler succeeds.

    If this process is interrupted meanwhile, the compiler ends with all that it started.

    Args:
        command: Compiler and arguments, but for `-o`.
        output: What is to be made.
        cwd: Where the compiler runs.
        timeout: Seconds after which the compiler is given up.
        finish: Called with the new file before it becomes `output`.
        own: Let nobody else write the output, whatever the umask says.
        stopped: Ends the compiler when it is set. For threads, which no Ctrl-C reaches.

    Raises:
        subprocess.SubprocessError: The compiler is not there, failed, took too long, or was ended.
        OSError: Its output could not be written.
    """
    with atomic_path(output, own=own) as temporary:
        environment = {**os.environ, "TMPDIR": str(temporary.parent)}
        _run_group([*command, "-o", str(temporary)], environment, cwd, timeout, stopped)
        if finish is not None:
            finish(temporary)


def _run_group(
    command: list[str],
    environment: dict[str, str],
    cwd: str | None,
    timeout: float | None,
    stopped: threading.Event | None,
) -> None:
    process: subprocess.Popen[bytes] | None = None
    try:
        # Interrupted between its start and our knowing of it, the compiler would go on.
        with signals_deferred():
            process = _start_group(command, environment, cwd)
        said = _wait(process, timeout, stopped)
    except BaseException:
        if process is not None:
            _end_group(process)
        raise
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command, said)


def _start_group(
    command: list[str], environment: dict[str, str], cwd: str | None
) -> subprocess.Popen[bytes]:
    try:
        # A group of its own: all of it can be ended, and Ctrl-C reaches it through us alone.
        return subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=environment,
            cwd=cwd,
            process_group=0,
        )
    except OSError as error:
        # As a shell tells it: an OSError would be taken for one of the output.
        raise subprocess.CalledProcessError(127, command, str(error).encode()) from error


def _wait(
    process: subprocess.Popen[bytes], timeout: float | None, stopped: threading.Event | None
) -> bytes:
    """Return what the compiler said, once it is done."""
    if stopped is None:
        return process.communicate(timeout=timeout)[0]
    deadline = time.monotonic() + (float("inf") if timeout is None else timeout)
    while True:
        try:
            return process.communicate(timeout=_LOOK_EVERY_S)[0]
        except subprocess.TimeoutExpired:
            if time.monotonic() > deadline:
                raise
            if stopped.is_set():
                raise subprocess.SubprocessError("nobody wants it any more") from None


def _end_group(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_STOP_GRACE_S)
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    if process.stdout is not None:
        process.stdout.close()
