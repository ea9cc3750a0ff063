"""What other processes take of the cores is told apart from what this one and its children do."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest

from torchkiln.core import _other_processes as others
from torchkiln.core._other_processes import OtherLoad, Reading

TICKS = os.sysconf("SC_CLK_TCK")
ME = os.getpid()


@pytest.fixture
def proc(tmp_path, monkeypatch):
    """A function that writes the counters of an invented machine with two cores, and reads them."""
    monkeypatch.setattr(others, "_PROC", tmp_path)
    monkeypatch.setattr(others, "usable_cores", lambda: {0, 1})

    def read(at_s, work, processes):
        lines = [f"cpu{core} {ticks} 0 0 999 5 0 0 77 0 0" for core, ticks in work.items()]
        (tmp_path / "stat").write_text("\n".join(["cpu 9 9 9 9 9 9 9", *lines, "btime 1"]))
        for pid, (name, parent, own, children) in processes.items():
            (tmp_path / str(pid)).mkdir(exist_ok=True)
            middle = " ".join("0" * 9)
            text = f"{pid} ({name}) R {parent} {middle} {own} 0 {children} 0 20 0"
            (tmp_path / str(pid) / "stat").write_text(text)
            (tmp_path / str(pid) / "cmdline").write_text(f"/usr/bin/{name}\0/x/job.py\0--secret\0")
        return Reading(at_s=at_s)

    return read


def test_the_work_of_others_is_what_is_left(proc):
    first = proc(0.0, {0: 0, 1: 0}, {ME: ("me", 1, 0, 0), 99999: ("python", 1, 10 * TICKS, 0)})
    # Ten seconds on two cores: five for this process, fifteen for somebody else.
    later = {ME: ("me", 1, 5 * TICKS, 0), 99999: ("python", 1, 24 * TICKS, 0)}
    load = proc(10.0, {0: 10 * TICKS, 1: 10 * TICKS}, later).load_since(first)
    assert (load.cores, load.used, load.busiest_used) == (2, pytest.approx(1.5), pytest.approx(1.4))
    assert load.is_high
    assert str(load) == (
        "other processes use 1.5 of 2 cores, most of it python job.py (process 99999) with 1.4"
    )


def test_work_that_the_clocks_of_cores_missed_counts_if_all_cores_may_be_used(proc, monkeypatch):
    first = proc(0.0, {0: 0, 1: 0}, {ME: ("me", 1, 0, 0), 99999: ("python", 1, 0, 0)})
    later = {ME: ("me", 1, 14 * TICKS, 0), 99999: ("python", 1, 5 * TICKS, 0)}
    second = proc(10.0, {0: 8 * TICKS, 1: 8 * TICKS}, later)
    monkeypatch.setattr(others.os, "cpu_count", lambda: 2)
    assert second.load_since(first).used == pytest.approx(0.5)
    # With more cores in the machine the other process may have run on one of those.
    monkeypatch.setattr(others.os, "cpu_count", lambda: 4)
    assert second.load_since(first).used == pytest.approx(0.2)


def test_one_of_many_is_not_said_to_be_most_of_it():
    load = OtherLoad(cores=2, used=1.4, busiest="cc1plus (process 7)", busiest_used=0.1)
    assert str(load) == (
        "other processes use 1.4 of 2 cores, the busiest is cc1plus (process 7) with 0.1"
    )


def test_children_are_not_others(proc):
    first = proc(0.0, {0: 0, 1: 0}, {ME: ("me", 1, 0, 0)})
    # A worker, what it started, and children that have ended.
    later = {
        ME: ("me", 1, 4 * TICKS, 3 * TICKS),
        88888: ("a (b) c", ME, 6 * TICKS, 1 * TICKS),
        99999: ("cc1plus", 88888, 6 * TICKS, 0),
    }
    load = proc(10.0, {0: 10 * TICKS, 1: 10 * TICKS}, later).load_since(first)
    assert load == OtherLoad(cores=2, used=0.0)
    assert not load.is_high


def test_cores_of_others_do_not_count(proc, monkeypatch):
    monkeypatch.setattr(others, "usable_cores", lambda: {0})
    first = proc(0.0, {0: 0, 1: 0}, {ME: ("me", 1, 0, 0)})
    load = proc(10.0, {0: 0, 1: 10 * TICKS}, {ME: ("me", 1, 0, 0)}).load_since(first)
    assert (load.cores, load.used) == (1, 0.0)


def test_processes_that_cannot_be_seen_have_no_name(proc):
    first = proc(0.0, {0: 0, 1: 0}, {ME: ("me", 1, 0, 0)})
    load = proc(10.0, {0: 9 * TICKS, 1: 9 * TICKS}, {ME: ("me", 1, 0, 0)}).load_since(first)
    assert str(load) == "other processes use 1.8 of 2 cores"


def test_too_short_a_time_tells_nothing(proc):
    first = proc(0.0, {0: 0}, {})
    assert proc(0.1, {0: 100}, {}).load_since(first) is None


def test_systems_without_counters_tell_nothing(monkeypatch, tmp_path):
    monkeypatch.setattr(others, "_PROC", tmp_path / "nothing")
    first = Reading()
    assert Reading(at_s=first.at_s + 10).load_since(first) is None


@pytest.mark.skipif(not os.path.exists("/proc/stat"), reason="the system has no /proc")
def test_a_real_child_counts_as_ours():
    """However busy the machine is, what a child of this process did is not said to be others'."""
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as child:
        try:
            first = Reading()
            time.sleep(0.5)
            second = Reading()
            load = second.load_since(first)
        finally:
            child.kill()
    assert child.pid in second.processes
    assert f"(process {child.pid})" not in load.busiest
