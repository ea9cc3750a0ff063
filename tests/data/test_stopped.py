"""Workers that stay stopped are ended, but not those that somebody debugs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest
from prefetch_helpers import wait_until

from torchkiln.data import _stopped


class Owner:
    """Lives as long as somebody waits for its processes."""


@pytest.fixture
def sleeper(monkeypatch):
    monkeypatch.setattr(_stopped, "_PATIENCE_S", 0.2)
    monkeypatch.setattr(_stopped, "_LOOK_S", 0.02)
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    yield process
    process.kill()
    process.wait()


def test_a_stopped_process_is_killed(sleeper):
    owner = Owner()
    killed = _stopped.watch_stopped(owner, [sleeper.pid])
    os.kill(sleeper.pid, signal.SIGSTOP)
    assert sleeper.wait(20) == -signal.SIGKILL
    wait_until(lambda: killed == [sleeper.pid])


def test_a_process_in_a_debugger_is_left_to_it(sleeper, monkeypatch):
    start = _stopped._read(sleeper.pid)[1]
    monkeypatch.setattr(_stopped, "_read", lambda pid: ("t", start))
    owner = Owner()
    killed = _stopped.watch_stopped(owner, [sleeper.pid])
    time.sleep(1)
    assert sleeper.poll() is None
    assert not killed


def test_nobody_watches_where_nothing_can_be_seen(sleeper, monkeypatch):
    monkeypatch.setattr(_stopped, "_read", lambda pid: ("", ""))
    monkeypatch.setattr(_stopped.threading, "Thread", None)
    assert _stopped.watch_stopped(Owner(), [sleeper.pid]) == []
