"""Numbers of a time line that is known by heart."""

from __future__ import annotations

import json

import pytest

from torchkiln.core import StoreError, span
from torchkiln.profiling import record, summarize
from torchkiln.profiling.system._recorder import CUT, END, FORMAT, HEADER
from torchkiln.profiling.system._summary import summarize_events


def name(what, pid=1, **values):
    return {"ph": "M", "name": what, "pid": pid, "tid": pid, "args": values}


def begin_file(pid=1, main=True):
    return [
        name(HEADER, pid, format=FORMAT, run="r", wall_s=0.0, main=main),
        name("process_name", pid, name=f"p{pid}"),
    ]


def event(kind, label, at_us, channel="training", pid=1, tid=None, **more):
    common = {"name": label, "cat": channel, "ts": at_us, "pid": pid, "tid": tid or pid}
    return {"ph": kind, **common, **more}


def test_totals_self_times_and_the_split_of_an_epoch():
    summary = summarize_events(
        [
            *begin_file(),
            event("B", "epoch 1", 0),
            event("B", "wait for data", 10),
            event("E", "wait for data", 30),
            event("B", "step", 30),
            event("B", "training step", 35, "program"),
            event("E", "training step", 70, "program"),
            event("E", "step", 80),
            event("B", "validation", 80, "validation"),
            event("E", "validation", 95, "validation"),
            event("E", "epoch 1", 100),
            name(END),
        ]
    )
    rows = {row.label: (row.count, row.total_us, row.self_us) for row in summary.rows}
    assert rows == {
        "epoch": (1, 100, 15),
        "wait for data": (1, 20, 20),
        "step": (1, 50, 15),
        "training step": (1, 35, 35),
        "validation": (1, 15, 15),
    }
    (split,) = summary.epochs
    parts = (split.step_us, split.wait_us, split.other_us, split.unmarked_us)
    assert (split.total_us, *parts) == (100, 50, 20, 15, 15)
    assert summary.wall_us == 100
    assert summary.processes[0].has_ended


def test_what_lies_within_its_like_is_counted_once():
    summary = summarize_events(
        [
            *begin_file(),
            event("B", "a", 0),
            event("B", "a", 10),
            event("E", "a", 30),
            event("E", "a", 100),
        ]
    )
    (row,) = summary.rows
    assert (row.count, row.total_us, row.self_us) == (2, 100, 100)


def test_threads_and_processes_are_kept_apart():
    summary = summarize_events(
        [
            *begin_file(),
            event("B", "a", 0, tid=1),
            event("B", "b", 5, tid=7),
            event("E", "a", 10, tid=1),
            event("E", "b", 25, tid=7),
            *begin_file(2, main=False),
            event("B", "a", 3, pid=2),
            event("E", "a", 4, pid=2),
        ]
    )
    assert summary.num_misnested == 0
    found = [(row.process.name, row.label, row.total_us) for row in summary.rows]
    assert found == [("p1", "b", 20), ("p1", "a", 10), ("p2", "a", 1)]


def test_what_a_killed_process_was_doing_counts_up_to_its_last_event():
    summary = summarize_events(
        [*begin_file(), event("B", "epoch 1", 0), event("B", "step", 10), event("i", "x", 40)]
    )
    rows = {row.label: row for row in summary.rows}
    assert (rows["step"].total_us, rows["step"].num_cut) == (30, 1)
    assert summary.epochs[0].is_cut
    assert summary.epochs[0].step_us == 30
    assert not summary.processes[0].has_ended


def test_a_stretch_that_was_cut_says_so():
    ends = event("E", "a", 10, args={CUT: True})
    (row,) = summarize_events([*begin_file(), event("B", "a", 0), ends, name(END)]).rows
    assert row.num_cut == 1


def test_counters_are_averaged_over_time():
    values = [(0, 10.0), (90, 20.0), (100, 0.0)]
    told = [event("C", "n", at_us, args={"n": value}) for at_us, value in values]
    (row,) = summarize_events([*begin_file(), *told]).counters
    assert (row.count, row.least, row.most, row.last) == (3, 0, 20, 0)
    assert row.mean == pytest.approx((90 * 10 + 10 * 20) / 100)


def test_events_that_do_not_nest_are_counted():
    stray = [*begin_file(), event("E", "a", 1)]
    assert summarize_events(stray).num_misnested == 1
    crossed = [event("B", "a", 0), event("B", "b", 1), event("E", "a", 2), event("E", "b", 3)]
    assert summarize_events([*begin_file(), *crossed]).num_misnested == 2


def test_damaged_files_are_errors(tmp_path):
    with record(tmp_path), span("a", "b"):
        pass
    (part,) = tmp_path.glob("*.*.trace.json")
    lines = part.read_text().splitlines(keepends=True)
    for number, wrong in [(5, "{nonsense},\n"), (5, "[1],\n"), (6, '{"ph":"B"},\n')]:
        damaged = [*lines]
        damaged[number] = wrong
        (tmp_path / "damaged.json").write_text("".join(damaged))
        with pytest.raises(StoreError, match="damaged"):
            summarize(tmp_path / "damaged.json")


def test_what_is_no_recording_is_told(tmp_path):
    (tmp_path / "x.json").write_text(json.dumps({"traceEvents": []}))
    with pytest.raises(StoreError, match="no system profile"):
        summarize(tmp_path / "x.json")
    with pytest.raises(StoreError, match="no system profile"):
        summarize(tmp_path)
    with pytest.raises(StoreError, match="cannot be read"):
        summarize(tmp_path / "missing")
    newer = name(HEADER, format=FORMAT + 1, torchkiln="9.0", run="r", wall_s=0.0, main=True)
    (tmp_path / "y.json").write_text(f"[\n{json.dumps(newer)}\n]\n")
    with pytest.raises(StoreError, match="another version"):
        summarize(tmp_path / "y.json")
