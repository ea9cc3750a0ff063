"""Files of several processes as one."""

from __future__ import annotations

import json

import pytest
from _recorded import run_python

from torchkiln.core import StoreError, span
from torchkiln.profiling import merge, record, summarize
from torchkiln.profiling.system._merge import find_runs, set_aside_older

OTHER = """
from torchkiln.core import span
with span("other", "work"):
    pass
"""


def test_all_processes_of_the_newest_run_are_merged(tmp_path):
    with record(tmp_path), span("old", "run"):
        pass
    with record(tmp_path), span("new", "run"):
        for _ in range(3):
            run_python(OTHER)
    (tmp_path / "trace.json").unlink()
    events = json.loads(merge(tmp_path).read_text())
    assert len({event["pid"] for event in events}) == 4
    assert {e["cat"] for e in events if e["ph"] == "B"} == {"new", "other"}
    assert [process.is_main for process in summarize(tmp_path).processes] == [True] + 3 * [False]


def test_it_can_be_written_elsewhere(tmp_path):
    with record(tmp_path / "from"), span("a", "b"):
        pass
    output = tmp_path / "to" / "mine.json"
    assert merge(tmp_path / "from", output) == output
    assert len(summarize(output).rows) == 1


def test_other_files_are_passed_over(tmp_path):
    with record(tmp_path), span("a", "b"):
        pass
    for name, content in {
        "empty.1.trace.json": "",
        "training_step.trace.json": '{"traceEvents": []}',
        "list.2.trace.json": "[1, 2]",
        "other.3.trace.json": '[\n{"name":"x","ph":"M","args":{}}\n]\n',
        "binary.4.trace.json": "\udcff\udcfe",
    }.items():
        (tmp_path / name).write_bytes(content.encode(errors="surrogateescape"))
    (tmp_path / "folder.5.trace.json").mkdir()
    assert [len(run.parts) for run in find_runs(tmp_path)] == [1]


def test_a_folder_without_a_recording_is_an_error(tmp_path):
    with pytest.raises(StoreError, match="there is no recording"):
        merge(tmp_path)
    with pytest.raises(StoreError, match="cannot be read"):
        merge(tmp_path / "missing")


def test_only_a_merged_file_of_another_run_is_set_aside(tmp_path):
    with record(tmp_path), span("a", "b"):
        pass
    (run,) = find_runs(tmp_path)
    set_aside_older(tmp_path, run.name)
    assert (tmp_path / "trace.json").exists()
    set_aside_older(tmp_path, "another")
    assert not (tmp_path / "trace.json").exists()
    assert (tmp_path / f"trace-{run.name}.json").exists()
    (tmp_path / "trace.json").write_text("somebody else's")
    set_aside_older(tmp_path, "another")
    assert (tmp_path / "trace.json").read_text() == "somebody else's"
