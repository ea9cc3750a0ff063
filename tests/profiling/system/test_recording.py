"""`record`: what happens in a block, in all its threads; and what goes wrong."""

from __future__ import annotations

import errno
import json
import os
import threading
import warnings

import pytest
from _recorded import check_nesting, events_in, follow, marks_in

from torchkiln.core import OptionsError, WriteError, counter, instant, instrument, span
from torchkiln.core import _trace as trace
from torchkiln.profiling import record
from torchkiln.profiling.system import _event_file
from torchkiln.profiling.system._merge import find_runs


def test_spans_instants_and_counters_are_recorded(tmp_path):
    with span("before", "it"), record(tmp_path) as path:
        with span("a", "outer"), span("b", 'in"ner\n'):
            instant("a", "now")
        counter("a", "speed", 2)
    with span("after", "it"):
        pass
    assert marks_in(tmp_path) == [
        ("B", "a", "outer"),
        ("B", "b", 'in"ner\n'),
        ("i", "a", "now"),
        ("E", "b", 'in"ner\n'),
        ("E", "a", "outer"),
        ("C", "a", "speed"),
    ]
    check_nesting(tmp_path)
    assert json.loads(path.read_text()) == events_in(tmp_path)


def test_memory_is_noted_and_events_know_process_and_thread(tmp_path):
    with record(tmp_path), span("a", "b"):
        pass
    events = events_in(tmp_path)
    memory = [e for e in events if e["ph"] == "C" and e["name"] == "memory (MB)"]
    assert len(memory) == 1
    assert 1 < memory[0]["args"]["memory (MB)"] < 1e6
    assert {(event["pid"], event["tid"]) for event in events} == {(os.getpid(), os.getpid())}


def test_only_the_channels_that_are_wanted(tmp_path):
    with record(tmp_path, channels=["a"]), span("a", "1"), span("b", "2"):
        instant("b", "3")
        counter("b", "4", 1)
        instant("a", "5")
    kinds = [(e["ph"], e["name"]) for e in events_in(tmp_path) if e["ph"] != "M"]
    assert kinds == [("B", "1"), ("i", "5"), ("E", "1")]


def test_recording_stops_after_its_duration(tmp_path, monkeypatch):
    now = [10**9]
    monkeypatch.setattr("time.perf_counter_ns", lambda: now[0])
    with record(tmp_path, duration_s=2.0), span("a", "long"):
        with span("a", "short"):
            now[0] += 10**9
        now[0] += 2 * 10**9
        with span("a", "late"):
            pass
        assert not trace.is_traced()
    _, timed = follow(tmp_path)
    found = {one.stretch.label: one.stretch for one in timed if one.kind == "E"}
    assert set(found) == {"short", "long"}
    assert found["long"].duration_us == 2e6
    assert (found["short"].is_cut, found["long"].is_cut) == (False, True)
    check_nesting(tmp_path)


def test_what_is_going_on_at_the_end_is_ended(tmp_path):
    started, ended = threading.Event(), threading.Event()

    def work():
        with span("a", "thread"):
            started.set()
            ended.wait()

    thread = threading.Thread(target=work, name="mine")
    open_span = span("a", "main")
    with record(tmp_path):
        open_span = span("a", "main")
        open_span.__enter__()
        thread.start()
        started.wait()
    ended.set()
    thread.join()
    open_span.__exit__(None, None, None)
    _, timed = follow(tmp_path)
    assert sorted(t.stretch.label for t in timed if t.stretch.is_cut) == ["main", "thread"]
    check_nesting(tmp_path)


def test_threads_have_rows_of_their_own(tmp_path):
    def work():
        for _ in range(50):
            with span("a", "outer"), span("a", "inner"):
                pass

    threads = [threading.Thread(target=work, name=f"worker-{i}") for i in range(4)]
    with record(tmp_path):
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    timeline = check_nesting(tmp_path)
    assert len(marks_in(tmp_path)) == 4 * 50 * 4
    names = timeline.processes[0].threads.values()
    assert {f"worker-{i}" for i in range(4)} <= set(names)


def test_stretches_that_do_not_nest_are_made_to(tmp_path):
    with record(tmp_path):
        first, second = span("a", "first"), span("a", "second")
        first.__enter__()
        second.__enter__()
        first.__exit__(None, None, None)
        second.__exit__(None, None, None)  # ended with the first already
        third = span("a", "third")
        third.__enter__()
        thread = threading.Thread(target=third.__exit__, args=(None, None, None))
        thread.start()
        thread.join()
    assert [mark[::2] for mark in marks_in(tmp_path)] == [
        ("B", "first"),
        ("B", "second"),
        ("E", "second"),
        ("E", "first"),
        ("B", "third"),
        ("E", "third"),
    ]
    check_nesting(tmp_path)


def test_a_mark_can_be_entered_within_itself(tmp_path):
    with record(tmp_path):
        mark = span("a", "b")
        with mark, mark:
            pass
    assert len(marks_in(tmp_path)) == 4
    check_nesting(tmp_path)


def test_numbers_that_json_does_not_know_are_left_out(tmp_path):
    with record(tmp_path) as path:
        for value in (float("nan"), float("inf"), 1.5):
            counter("a", "b", value)
    assert len(marks_in(tmp_path)) == 1
    json.loads(path.read_text(), parse_constant=pytest.fail)


def test_special_methods_are_recorded(tmp_path):
    class Numbers:
        def __getitem__(self, index):
            return index

    numbers = instrument(Numbers(), "mine", "__getitem__")
    with record(tmp_path):
        assert numbers[3] == 3
    assert marks_in(tmp_path) == [("B", "mine", "__getitem__"), ("E", "mine", "__getitem__")]


def test_two_recordings_in_one_folder_stay_apart(tmp_path):
    with record(tmp_path) as first, span("a", "1"):
        pass
    with record(tmp_path) as second, span("a", "2"):
        pass
    assert first == second == tmp_path / "trace.json"
    assert [len(run.parts) for run in find_runs(tmp_path)] == [1, 1]
    assert {name for _, _, name in marks_in(tmp_path)} == {"2"}
    assert '"1"' not in second.read_text()
    set_aside = [p for p in tmp_path.iterdir() if p.name.startswith("trace-")]
    assert len(set_aside) == 1
    assert '"name":"1"' in set_aside[0].read_text()


def test_recordings_within_each_other_both_get_everything(tmp_path):
    before = dict(os.environ)
    with record(tmp_path / "out"), span("a", "1"), record(tmp_path / "in"), span("a", "2"):
        pass
    assert len(marks_in(tmp_path / "out")) == 4
    assert len(marks_in(tmp_path / "in")) == 2
    assert dict(os.environ) == before


def test_a_block_that_fails_leaves_its_trace(tmp_path):
    with pytest.raises(KeyError), record(tmp_path) as path, span("a", "b"):
        raise KeyError
    assert path.exists()
    check_nesting(tmp_path)
    assert not trace.is_traced()


def test_nothing_is_recorded_without_a_listener(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert not trace.is_traced()
    assert span("a", "b") is span("c", "d")
    with span("a", "b"):
        instant("a", "c")
        counter("a", "d", 1)
    assert list(tmp_path.iterdir()) == []


def test_wrong_arguments_and_folders_are_errors(tmp_path):
    (tmp_path / "file").touch()
    for place in ("file", "file/below"):
        with pytest.raises(WriteError, match="choose another directory"), record(tmp_path / place):
            pass
    with pytest.raises(OptionsError, match="channels"), record(tmp_path, channels=[]):
        pass
    with pytest.raises(OptionsError, match="duration_s"), record(tmp_path, duration_s=-1):
        pass
    assert not trace.is_traced()


@pytest.mark.parametrize("room", [0, 7])
def test_a_full_disk_ends_the_recording_with_one_warning(tmp_path, monkeypatch, room):
    real_write, is_full = os.write, [False]

    def write(descriptor, content):
        if not is_full[0]:
            return real_write(descriptor, content)
        if room and len(content) > room and b"first" in content:
            return real_write(descriptor, content[:room])
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(_event_file.os, "write", write)
    done = []
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        with record(tmp_path):
            with span("a", "before"):
                pass
            is_full[0] = True
            for label in ("first", "second"):
                with span("a", label):
                    done.append(label)
            is_full[0] = False
    assert done == ["first", "second"]
    assert [str(one.message).count("nothing can be written") for one in told] == [1]
    assert "No space left" in str(told[0].message)
    assert marks_in(tmp_path) == [("B", "a", "before"), ("E", "a", "before")]


def test_links_are_not_followed_and_permissions_follow_the_umask(tmp_path):
    before = os.umask(0o027)
    try:
        with record(tmp_path / "new") as path:
            pass
    finally:
        os.umask(before)
    modes = {file.stat().st_mode & 0o777 for file in (tmp_path / "new").iterdir()}
    assert modes == {0o640}
    target = tmp_path / "target"
    target.write_text("precious")
    link = tmp_path / "link.trace.json"
    link.symlink_to(target)
    with pytest.raises(FileExistsError):
        _event_file.EventFile(link, "{}")
    assert target.read_text() == "precious"
    path.unlink()
    path.symlink_to(target)
    with record(tmp_path / "new"):
        pass
    assert target.read_text() == "precious"
    assert not path.is_symlink()
