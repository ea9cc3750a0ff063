"""One line, once, when others take the cores."""

from __future__ import annotations

import pytest

from torchkiln.core._other_processes import OtherLoad, Reading
from torchkiln.training import _core_watch
from torchkiln.training._core_watch import CoreWatch

BUSY = OtherLoad(cores=2, used=1.9, busiest="python job.py (process 7)", busiest_used=1.8)
IDLE = OtherLoad(cores=2, used=0.2)


@pytest.fixture
def clock(monkeypatch):
    """A function that lets time pass, and one that says what others do."""
    monkeypatch.delenv("TORCHKILN_IGNORE_LOAD")
    state = {"now": 0.0, "load": IDLE, "looks": 0}

    def load_since(self, earlier):
        state["looks"] += 1
        return state["load"]

    monkeypatch.setattr(Reading, "load_since", load_since)
    monkeypatch.setattr(_core_watch.time, "monotonic", lambda: state["now"])
    return state


def test_a_busy_machine_is_told_once(clock):
    watch = CoreWatch()
    clock.update(now=2.0, load=BUSY)
    line = watch.look()
    assert line.startswith(
        "other processes use 1.9 of 2 cores, most of it python job.py (process 7)"
    )
    assert "end them, or train when they are done" in line
    assert "\n" not in line
    clock.update(now=1e6)
    assert watch.look() is None


def test_a_machine_that_becomes_busy_later_is_told_then(clock):
    watch = CoreWatch()
    clock.update(now=2.0)
    assert watch.look() is None
    clock.update(now=40.0, load=BUSY)
    assert watch.look() is not None


def test_looks_become_rare(clock):
    watch = CoreWatch()
    for second in range(10_000):
        clock["now"] = float(second)
        watch.look()
    assert 10 < clock["looks"] < 25


def test_nothing_is_said_of_a_time_too_short(clock):
    watch = CoreWatch()
    clock.update(load=BUSY)
    assert watch.look() is None
    assert clock["looks"] == 0


def test_it_can_be_switched_off(clock, monkeypatch):
    monkeypatch.setenv("TORCHKILN_IGNORE_LOAD", "1")
    watch = CoreWatch()
    clock.update(now=100.0, load=BUSY)
    assert watch.look() is None
