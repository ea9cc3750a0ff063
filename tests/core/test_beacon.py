"""What a process tells its monitor, and that telling never disturbs it."""

from __future__ import annotations

import copy
import fcntl
import math
import os
import pickle
import stat
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from _beacon_processes import SAY, SOURCE, WAIT, running

from torchkiln.core import _beacon_folder, _beacon_page
from torchkiln.core import _beacon_layout as layout
from torchkiln.core._beacon import (
    ProgramBeacon,
    compile_phase,
    tell_training,
    waiting_for_data,
    with_waits,
)
from torchkiln.core._process_identity import pid_namespace
from torchkiln.monitor._beacons import Reading, read_beacons


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    """A session of its own for this test, and no beacon yet."""
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
    (reading,) = read_beacons().living
    return reading


def test_the_parts_of_the_page_do_not_overlap():
    assert layout.HEADER.size <= layout.PROCESS_AT
    assert layout.PROCESS.size <= layout.PROCESS_BYTES
    assert layout.PROCESS_AT + layout.PROCESS_BYTES <= layout.SLOTS_AT
    assert layout.FACTS_AT + layout.FACTS.size <= layout.SLOT_BYTES
    assert layout.slot_at(layout.NUM_SLOTS) == layout.SIZE
    assert layout.PROCESS_AT % 8 == layout.SLOTS_AT % 8 == 0  # words are written at once


def test_calls_are_counted_exactly(folder):
    program = make_program(steps_per_call=4, rank=1, num_ranks=2)
    for _ in range(5):
        with program:
            assert read_one().programs[0].since_ns > 0
    slot = read_one().programs[0]
    assert (slot.calls, slot.steps, slot.since_ns) == (5, 20, 0)
    assert (slot.rank, slot.num_ranks) == (1, 2)
    assert (slot.name, slot.kind, slot.backend) == ("training step", "training", "capture")
    assert (slot.source, slot.device) == ("captured", "cpu")
    assert slot.executing_ns > 0
    assert 0 < slot.interval_ns <= slot.ended_ns


def test_a_call_that_fails_is_no_step_but_takes_time(folder):
    program = make_program()
    with pytest.raises(KeyError), program:
        raise KeyError
    slot = read_one().programs[0]
    assert (slot.calls, slot.steps, slot.ended_ns, slot.since_ns) == (0, 0, 0, 0)
    assert slot.executing_ns > 0


def test_compilation_has_phases(folder):
    program = ProgramBeacon("validation", "inference", "inductor")
    with program.compiling():
        compile_phase("code generation")
        slot = read_one().programs[0]
        assert (slot.state, slot.phase) == (layout.COMPILING, "code generation")
        program.is_ready("cache hit", "cpu")
    slot = read_one().programs[0]
    assert (slot.state, slot.phase, slot.source) == (layout.READY, "", "cache hit")
    compile_phase("nobody compiles")
    assert read_one().programs[0].phase == ""
    program.is_destroyed()
    assert read_one().programs[0].state == layout.NEW


def test_a_compilation_that_fails_leaves_the_state_before(folder):
    program = ProgramBeacon("x", "training", "capture")
    with pytest.raises(ValueError), program.compiling():  # noqa: PT011 - our own
        raise ValueError
    slot = read_one().programs[0]
    assert (slot.state, slot.since_ns) == (layout.NEW, 0)


def test_nested_waits_count_once(folder):
    make_program()
    program = make_program()
    with waiting_for_data:
        with waiting_for_data:
            since = read_one().process.waiting_since_ns
            assert since > 0
        assert read_one().process.waiting_since_ns == since
        time.sleep(0.002)
    process = read_one().process
    assert process.waiting_since_ns == 0
    assert 2_000_000 <= process.waiting_ns <= time.monotonic_ns() - since
    assert program is not None


def test_batches_pass_unchanged(folder):
    assert list(with_waits([1, None, 3])) == [1, None, 3]  # no beacon yet
    program = make_program()
    assert list(with_waits(iter("ab"))) == ["a", "b"]
    assert read_one().process.waiting_ns > 0
    assert program is not None


def test_training_tells_samples_and_loss(folder):
    tell_training(1, 0.0, 1, 1)  # nobody listens
    program = make_program()
    assert math.isnan(read_one().process.loss)
    tell_training(30, 0.5, 1, 4)
    tell_training(20, 0.25, 2, 4)
    process = read_one().process
    assert (process.samples, process.train_samples, process.loss) == (50, 20, 0.25)
    assert (process.epoch, process.num_epochs) == (2, 4)
    assert process.train_interval_ns > 0
    assert program is not None


def test_long_names_are_cut_between_characters(folder):
    program = make_program("é" * 40)
    assert read_one().programs[0].name == "é" * 24
    assert program is not None


def test_a_program_that_is_gone_leaves_its_slot(folder):
    program, other = make_program("one"), make_program("two")
    del program
    assert [slot.name for slot in read_one().programs.values()] == ["two"]
    third = make_program("three")
    assert [slot.name for slot in read_one().programs.values()] == ["three", "two"]
    assert other is not third


def test_more_programs_than_slots_show_the_latest(folder):
    programs = [make_program(str(number)) for number in range(layout.NUM_SLOTS + 1)]
    names = {slot.name for slot in read_one().programs.values()}
    assert names == {str(number) for number in range(1, layout.NUM_SLOTS + 1)}
    with programs[0]:
        pass
    shown = {slot.name: slot for slot in read_one().programs.values()}
    assert shown["0"].calls == 1
    assert "1" not in shown


def test_a_copy_of_a_program_counts_for_itself(folder):
    program = make_program()
    with program:
        pass
    twin = copy.deepcopy(program)
    with twin:
        pass
    assert [slot.calls for slot in read_one().programs.values()] == [1, 1]
    assert pickle.loads(pickle.dumps(program)) is not program


def test_folder_and_file_are_private(folder):
    program = make_program()
    (file,) = folder.iterdir()
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert file.stat().st_size == layout.SIZE
    assert program is not None


def test_zero_switches_it_off(folder, monkeypatch):
    monkeypatch.setenv("TORCHKILN_BEACON", "0")
    program = make_program()
    with program, waiting_for_data:
        pass
    assert not folder.exists()
    assert read_beacons().living == ()


def test_a_value_that_makes_no_sense_is_named(folder, monkeypatch):
    monkeypatch.setenv("TORCHKILN_BEACON", "public")
    with pytest.warns(UserWarning, match="must be 0, 1 or shared, got 'public'"):
        program = make_program()
    assert len(read_beacons().living) == 1
    assert program is not None


@pytest.mark.parametrize(
    "call", ["os.posix_fallocate", "fcntl.flock", "mmap.mmap", "os.fchmod", "os.register_at_fork"]
)
def test_whatever_fails_the_run_goes_on_without(folder, monkeypatch, call):
    def refuse(*args: object, **settings: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(_beacon_page, "_is_registered", False)
    monkeypatch.setattr(call, refuse)
    program = make_program()
    with program, waiting_for_data:
        tell_training(1, 1.0, 1, 1)
    assert _beacon_page.page is None
    assert not folder.exists() or list(folder.iterdir()) == []


def test_no_folder_at_all(tmp_path, folder, monkeypatch):
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    monkeypatch.setattr(_beacon_folder, "_SHARED_MEMORY", tmp_path / "missing" / "shm")
    program = make_program()
    with program:
        pass
    assert _beacon_page.page is None
    assert read_beacons().living == ()


def test_a_session_that_cannot_be_used_gives_way_to_shared_memory(tmp_path, folder, monkeypatch):
    (tmp_path / "shm").mkdir()
    folder.symlink_to(tmp_path)  # a link is not followed
    program = make_program()
    uid = os.geteuid()
    assert len(list((tmp_path / "shm" / f"torchkiln-{uid}").iterdir())) == 1
    assert len(read_beacons().living) == 1
    assert program is not None


def test_a_monitor_without_a_session_finds_programs_of_one(folder, monkeypatch):
    sessions = _beacon_folder._SESSIONS
    place = sessions / str(os.geteuid())
    place.mkdir(parents=True)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(place))
    program = make_program()
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    assert len(read_beacons().living) == 1
    assert program is not None


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
