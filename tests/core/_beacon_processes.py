"""Beacons for tests, of this process and of others: in a folder of their own, without torch."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from torchkiln.core import _beacon_folder, _beacon_page
from torchkiln.core._beacon import ProgramBeacon
from torchkiln.monitor._beacons import Reading, read_beacons

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


def own_session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Yield where beacons lie from now on: a session of its own, in which there is none yet."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setattr(_beacon_folder, "_SHARED_MEMORY", tmp_path / "shm")
    monkeypatch.setattr(_beacon_folder, "_SESSIONS", tmp_path / "sessions")
    monkeypatch.setattr(_beacon_page, "page", None)
    monkeypatch.setattr(_beacon_page, "_is_off", False)
    yield tmp_path / "torchkiln"
    if _beacon_page.page is not None:
        _beacon_page.page.drop_programs()
        _beacon_page.page.close()


def make_program(name: str = "training step", **settings: int) -> ProgramBeacon:
    program = ProgramBeacon(name, "training", "capture", **settings)
    with program.compiling():
        program.is_ready("captured", "cpu")
    return program


def read_one() -> Reading:
    """Return what the only living process tells."""
    (reading,) = read_beacons().living
    return reading
