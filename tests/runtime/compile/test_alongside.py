"""Work of a compiler beside other work: done or told to stop when the block ends."""

from __future__ import annotations

import contextvars
import threading

import pytest

from torchkiln.runtime.compile import _alongside
from torchkiln.runtime.compile._alongside import Alongside, stop_event

SETTING = contextvars.ContextVar("SETTING", default="default")


@pytest.fixture(params=[1, 2], ids=["one-core", "two-cores"])
def cores(request, monkeypatch):
    monkeypatch.setattr(_alongside, "usable_cores", lambda: set(range(request.param)))
    return request.param


def test_work_is_done_when_the_block_ends(cores):
    done = []
    with Alongside() as alongside:
        alongside.start(lambda: done.append(threading.current_thread()))
    assert len(done) == 1
    assert (done[0] is threading.current_thread()) == (cores == 1)


def test_work_sees_the_settings_of_the_thread_that_started_it(cores):
    seen = []
    token = SETTING.set("mine")
    with Alongside() as alongside:
        alongside.start(lambda: seen.append(SETTING.get()))
    SETTING.reset(token)
    assert seen == ["mine"]


def test_an_error_of_the_work_is_raised(cores):
    def fail():
        raise OSError("no room")

    with pytest.raises(OSError, match="no room"), Alongside() as alongside:
        alongside.start(fail)


def test_work_is_told_to_stop_when_the_block_fails(monkeypatch):
    monkeypatch.setattr(_alongside, "usable_cores", lambda: {0, 1})
    stopped = []

    def work():
        event = stop_event()
        assert event is not None
        stopped.append(event.wait(60))

    def build():
        with Alongside() as alongside:
            alongside.start(work)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build()
    assert stopped == [True]
    assert stop_event() is None
