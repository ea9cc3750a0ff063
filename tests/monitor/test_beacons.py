"""Who lives, who is dead, and what is whole: beacons as others find them."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from _beacon_processes import SAY, SOURCE, WAIT, make_program, own_session, read_one, running

from torchkiln.core import _beacon_layout as layout
from torchkiln.core import _beacon_page
from torchkiln.core._process_identity import pid_namespace
from torchkiln.monitor._beacons import read_beacons


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Iterator[Path]:
    yield from own_session(tmp_path, monkeypatch)


def test_a_dead_owner_is_gone_at_once_though_its_children_live(folder):
    fork = """
    child = os.fork()
    if child == 0:
        print("ready", flush=True)
        time.sleep(60)
        os._exit(0)
    sys.stdin.readline()
    """
    with running(fork) as process:
        (reading,) = read_beacons().living
        assert reading.header.pid == process.pid
        (child,) = _children(process.pid)
        process.kill()
        process.wait()
        try:
            assert read_beacons().living == ()
            assert list(folder.iterdir()) == []
            os.kill(child, 0)  # it lives
        finally:
            os.kill(child, 9)


def test_the_lock_alone_tells_a_dead_owner_with_children(folder, monkeypatch):
    """Where processes cannot be looked up, as in another container."""
    monkeypatch.setattr("torchkiln.monitor._beacons.is_running", lambda *_: True)
    test_a_dead_owner_is_gone_at_once_though_its_children_live(folder)


def test_a_process_that_was_not_waited_for_is_gone(folder):
    with running() as process:
        assert len(read_beacons().living) == 1
        os.kill(process.pid, 9)
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert read_beacons().living == ()


def test_a_forked_child_has_a_beacon_of_its_own_and_writes_into_no_other(folder):
    fork = """
    child = os.fork()
    if child == 0:
        assert _beacon_page.page is None
        with _beacon.waiting_for_data:
            pass
        assert _beacon_page.page is None  # loading alone makes none
        with program:
            pass
    print("ready", flush=True)
    sys.stdin.readline()
    if child == 0:
        os._exit(0)
    """
    with running(fork) as process:
        assert process.stdout is not None
        process.stdout.readline()  # of the other one
        by_pid = {reading.header.pid: reading for reading in read_beacons().living}
        assert by_pid.pop(process.pid).programs[0].calls == 3
        ((child, reading),) = by_pid.items()
        assert reading.programs[0].calls == 1
        assert reading.programs[0].source == "captured"
        os.kill(child, 9)


def test_a_spawned_child_holds_nothing(folder):
    spawn = "import subprocess\nsubprocess.Popen(['sleep', '60'], close_fds=False)\n" + WAIT
    with running(spawn) as process:
        (child,) = _children(process.pid)
        process.kill()
        process.wait()
        assert read_beacons().living == ()
        os.kill(child, 9)


def test_a_process_that_ends_removes_its_file(folder):
    code = "import torchkiln.core._beacon as b\nwith b.ProgramBeacon('x', 'training', 'y'): pass"
    subprocess.run(
        [sys.executable, "-c", code], check=True, env={**os.environ, "PYTHONPATH": str(SOURCE)}
    )
    assert folder.is_dir()
    assert list(folder.iterdir()) == []


def test_the_next_process_removes_what_a_killed_one_left(folder):
    with running() as process:
        process.kill()
        process.wait()
        (left,) = folder.iterdir()
    program = make_program()
    (file,) = folder.iterdir()
    assert file != left
    assert program is not None


def test_a_living_one_is_never_removed_by_many_that_look(folder):
    program = make_program()
    looks = "import torchkiln.monitor._beacons as b\nfor _ in range(200): b.read_beacons()"
    environment = {**os.environ, "PYTHONPATH": str(SOURCE)}
    readers = [subprocess.Popen([sys.executable, "-c", looks], env=environment) for _ in range(2)]
    # Others come and go meanwhile.
    for _ in range(3):
        with running() as process:
            pids = {reading.header.pid for reading in read_beacons().living}
            assert pids == {os.getpid(), process.pid}
    assert [reader.wait() for reader in readers] == [0, 0]
    assert read_one().header.pid == os.getpid()
    assert len(list(folder.iterdir())) == 1
    assert program is not None


def test_records_are_never_mixed(folder):
    """A process writes as fast as it can; each record that is read belongs to one moment."""
    hammer = SAY + "while True:\n    with program: _beacon.tell_training(7, 7.0, 1, 1)\n"
    with running(hammer):
        seen = set()
        for _ in range(3000):
            (reading,) = read_beacons().living
            slot, process = reading.programs.get(0), reading.process
            if slot is None or process is None:
                continue  # it had to leave its core in the middle of writing, for long
            assert slot.steps == 2 * slot.calls
            # Each call ends an interval that began with the one before.
            assert slot.sequence % 2 == process.sequence % 2 == 0
            assert process.samples % 7 == 0
            assert 0 <= slot.interval_ns < slot.ended_ns
            seen.add(slot.calls)
        assert len(seen) > 10


def test_another_process_with_the_number_of_a_dead_one_is_not_taken_for_it(folder):
    header = layout.Header(os.getpid(), pid_namespace(), 1, time.time_ns(), "an earlier one")
    path, memory, lock = _beacon_page._make_file(folder, header)
    try:
        assert read_beacons().living == ()
        assert not path.exists()
    finally:
        memory.close()
        os.close(lock)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"x",
        b"TKBEACON",
        b"TKBEACON" + b"\xff" * 5000,
        bytes(layout.SIZE),
        b"\xff" * layout.SIZE,
    ],
)
def test_damaged_files_are_ignored(folder, content):
    program = make_program()
    path = folder / "1-00000000.beacon"
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        fcntl.flock(file, fcntl.LOCK_EX)
        assert [reading.header.pid for reading in read_beacons().living] == [os.getpid()]
    read_beacons()
    assert not path.exists()  # nobody holds it
    assert program is not None


def test_damaged_slots_are_ignored(folder):
    program = make_program()
    (file,) = folder.iterdir()
    with file.open("r+b") as damaged:
        damaged.seek(layout.slot_at(3))
        damaged.write(b"\xfe" * layout.SLOT_BYTES)
        damaged.seek(layout.slot_at(0) + layout.FACTS_AT + 16)
        damaged.write(b"\xff\xfe")
    assert list(read_one().programs) == [0]
    assert read_one().programs[0].name.startswith("\ufffd")
    assert program is not None


def test_a_record_that_stays_half_written_is_left_out(folder, monkeypatch):
    monkeypatch.setattr("torchkiln.monitor._beacons._PAUSES", 2)
    program = make_program()
    (file,) = folder.iterdir()
    with file.open("r+b") as stopped:
        stopped.seek(layout.slot_at(0))
        stopped.write(b"\x01")
    assert read_one().programs == {}
    assert program is not None


def test_other_formats_are_counted(folder):
    program = make_program()
    header = layout.Header(1, 0, 0, 0, "x").encode()
    with (folder / "1-00000000.beacon").open("wb") as file:
        file.write(header[:8] + (99).to_bytes(4, sys.byteorder) + header[12:])
        file.flush()
        fcntl.flock(file, fcntl.LOCK_EX)
        readings = read_beacons()
    assert (len(readings.living), readings.num_other_format) == (1, 1)
    assert program is not None


def test_pipes_and_links_in_the_folder_stop_nobody(folder, tmp_path):
    program = make_program()
    os.mkfifo(folder / "1-pipe.beacon")
    (folder / "1-link.beacon").symlink_to(tmp_path / "nowhere")
    (folder / "1-dir.beacon").mkdir()
    assert len(read_beacons().living) == 1
    assert program is not None


def _children(pid: int) -> list[int]:
    return [child.pid for child in psutil.Process(pid).children()]
