"""PVTI_OPTIONS in the environment of a program: recorded from its first mark to its end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import pytest
from _recorded import check_nesting, follow, marks_in, pvti, run_python

from torchkiln.profiling import merge, summarize

PROGRAM = """
from torchkiln.core import span
with span("a", "b"):
    print("went on")
"""
# Works until it is killed, deep in something that takes long.
ENDLESS = """
import time
from torchkiln.core import span
for number in range(1000):
    with span("a", "step"):
        pass
with span("a", "epoch 1"), span("b", "endless"):
    print("ready", flush=True)
    time.sleep(600)
"""


def test_without_the_variable_nothing_is_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run_python(PROGRAM)
    run_python(PROGRAM, PVTI_OPTIONS="")
    run_python(PROGRAM, PVTI_OPTIONS='{"enable":"false"}')
    assert list(tmp_path.iterdir()) == []


def test_a_program_is_recorded_and_merged(tmp_path):
    done = run_python(PROGRAM, PVTI_OPTIONS=pvti(enable="true", directory=str(tmp_path / "new")))
    assert (done.stdout, done.stderr) == ("went on\n", "")
    assert marks_in(tmp_path / "new") == [("B", "a", "b"), ("E", "a", "b")]
    names = sorted(path.name for path in (tmp_path / "new").iterdir())
    assert len(names) == 2
    assert names[-1] == "trace.json"
    assert len(json.loads((tmp_path / "new" / "trace.json").read_text())) > 4


def test_a_program_that_marks_nothing_leaves_nothing(tmp_path):
    run_python("import torchkiln.core", PVTI_OPTIONS=pvti(directory=str(tmp_path / "new")))
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("text", ["nonsense", '{"dirctory":"x"}'])
def test_nonsense_is_told_and_recorded_in_the_current_folder(tmp_path, monkeypatch, text):
    monkeypatch.chdir(tmp_path)
    done = run_python(PROGRAM, PVTI_OPTIONS=text)
    assert done.stdout == "went on\n"
    assert done.stderr.count("PVTI_OPTIONS is not what it should be") == 1
    assert len(marks_in(tmp_path)) == 2


def test_a_folder_that_cannot_be_written_is_one_warning(tmp_path):
    (tmp_path / "file").touch()
    done = run_python(PROGRAM, PVTI_OPTIONS=pvti(directory=str(tmp_path / "file" / "below")))
    assert done.stdout == "went on\n"
    assert done.stderr.count("the run goes on without") == 1


def test_channels_and_duration(tmp_path):
    program = """
import time
from torchkiln.core import span
with span("a", "1"), span("b", "2"):
    time.sleep(0.3)
with span("a", "late"):
    pass
"""
    wanted = pvti(directory=str(tmp_path), channels=["a"], duration=0.2)
    run_python(program, PVTI_OPTIONS=wanted)
    assert marks_in(tmp_path) == [("B", "a", "1"), ("E", "a", "1")]
    _, timed = follow(tmp_path)
    assert timed[-1].stretch.is_cut


def test_a_killed_program_leaves_a_file_that_opens(tmp_path):
    environment = {**os.environ, "PVTI_OPTIONS": pvti(directory=str(tmp_path))}
    with subprocess.Popen(
        [sys.executable, "-c", ENDLESS], env=environment, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        os.kill(process.pid, signal.SIGKILL)
    assert process.returncode == -signal.SIGKILL
    assert not (tmp_path / "trace.json").exists()
    timeline = check_nesting(tmp_path)
    assert not timeline.processes[0].has_ended
    rows = {(row.channel, row.label): row for row in summarize(tmp_path).rows}
    assert rows["a", "step"].count == 1000
    assert (rows["b", "endless"].num_cut, rows["a", "step"].num_cut) == (1, 0)
    merged = merge(tmp_path)
    assert len(json.loads(merged.read_text())) > 2000
    assert len(summarize(merged).rows) == len(rows)


def test_a_file_opens_wherever_its_end_is_cut(tmp_path):
    run_python(PROGRAM, PVTI_OPTIONS=pvti(directory=str(tmp_path / "whole")))
    (part,) = (tmp_path / "whole").glob("*.*.trace.json")
    content = part.read_bytes()
    header = content.index(b"\n", 2) + 1
    (tmp_path / "cut").mkdir()
    for length in range(header, len(content)):
        (tmp_path / "cut" / part.name).write_bytes(content[:length])
        check_nesting(tmp_path / "cut")
        json.loads(merge(tmp_path / "cut").read_text())


def test_programs_that_a_recorded_one_starts_are_part_of_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    program = f"""
import subprocess, sys
from torchkiln.core import span
with span("a", "outer"):
    subprocess.run([sys.executable, "-c", {PROGRAM!r}], check=True, cwd="/")
"""
    run_python(program, PVTI_OPTIONS=pvti(directory="here", channels=["a"]))
    timeline = check_nesting(tmp_path / "here")
    assert [one.is_main for one in timeline.processes] == [True, False]
    assert all(one.has_ended for one in timeline.processes)
    assert len(marks_in(tmp_path / "here")) == 4


def test_ranks_of_a_launcher_are_one_run(tmp_path):
    environment = {"PVTI_OPTIONS": pvti(directory=str(tmp_path)), "TORCHELASTIC_RUN_ID": "x"}
    for rank in range(2):
        run_python(PROGRAM, **environment, RANK=str(rank), WORLD_SIZE="2")
    summary = summarize(tmp_path)
    assert sorted(process.name for process in summary.processes) == [
        "main of rank 0",
        "main of rank 1",
    ]
    assert len(summarize(tmp_path / "trace.json").processes) == 2
    assert len(list(tmp_path.iterdir())) == 3
