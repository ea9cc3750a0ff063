"""What a process tells its monitor, and that telling never disturbs it."""

from __future__ import annotations

import copy
import math
import os
import pickle
import stat
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from _beacon_processes import make_program, own_session, read_one

from torchkiln.core import _beacon_folder, _beacon_page
from torchkiln.core import _beacon_layout as layout
from torchkiln.core._beacon import (
    ProgramBeacon,
    compile_phase,
    tell_training,
    waiting_for_data,
    with_waits,
)
from torchkiln.monitor._beacons import read_beacons


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Iterator[Path]:
    yield from own_session(tmp_path, monkeypatch)


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


def test_calls_that_overlap_in_two_threads_take_no_longer_than_both(folder):
    program = make_program()
    start = time.monotonic_ns()
    program.__enter__()
    program.__enter__()
    program.__exit__(None, None, None)
    program.__exit__(None, None, None)
    slot = read_one().programs[0]
    assert slot.calls == 2
    assert slot.executing_ns <= time.monotonic_ns() - start


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
