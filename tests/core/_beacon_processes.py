"""Processes with a beacon, for tests: in a folder of their own, and without torch."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src"
# A program that has run three times.
BEGIN = """
import os, signal, sys, time
from torchkiln.core import _beacon, _beacon_page
from torchkiln.core._beacon import ProgramBeacon
program = ProgramBeacon("training step", "training", "capture", steps_per_call=2)
with program.compiling():
    program.is_ready("captured", "cpu")
for _ in range(3):
    with program:
        pass
"""
SAY = "print('ready', flush=True)\n"
WAIT = SAY + "sys.stdin.readline()\n"


def start(code: str, **settings: str) -> subprocess.Popen[str]:
    """Start a process and wait until it says that it is ready."""
    environment = {**os.environ, "PYTHONPATH": str(SOURCE), **settings}
    process = subprocess.Popen(
        [sys.executable, "-c", BEGIN + textwrap.dedent(code)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    )
    assert process.stdout is not None
    said = process.stdout.readline()
    assert said.startswith("ready"), said
    return process


@contextlib.contextmanager
def running(code: str = WAIT, **settings: str) -> Iterator[subprocess.Popen[str]]:
    """Yield a process that is ended afterwards."""
    process = start(code, **settings)
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        for stream in (process.stdin, process.stdout):
            assert stream is not None
            stream.close()
