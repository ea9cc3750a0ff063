"""Native helpers are built at the same time as each other, and end with whoever asked for them."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from torchkiln.core import _threads
from torchkiln.ops import _native, _prepare

# Stands for g++: says that it runs, does what the test asks, and makes an empty library.
COMPILER = """#!/bin/sh
touch "{folder}/running-$$"
{work}
while [ "$1" != "-o" ]; do shift; done
echo "a library" > "$2"
"""
# Succeeds only if another compiler runs at the same time.
MEETS_ANOTHER = """
for i in $(seq 300); do
  [ $(ls {folder} | grep -c running) -ge 2 ] && break
  sleep 0.1
done
[ $(ls {folder} | grep -c running) -ge 2 ] || exit 1
"""


@pytest.fixture
def workshop(tmp_path, monkeypatch):
    """A function that puts a compiler of ours in the place of gcc or g++; nothing is loaded."""
    loaded = []
    monkeypatch.setenv("TORCHKILN_NATIVE_DIR", str(tmp_path / "native"))
    monkeypatch.setattr(_prepare, "_prepared", set())
    monkeypatch.setattr(_prepare, "load_native", loaded.append)
    monkeypatch.setattr(_prepare, "usable_cores", lambda: {0, 1})
    monkeypatch.setattr(_native, "_outcomes", {})

    def use(variable, work):
        path = tmp_path / variable
        path.write_text(COMPILER.format(folder=tmp_path, work=work.format(folder=tmp_path)))
        path.chmod(0o755)
        monkeypatch.setenv(variable, str(path))
        return loaded

    return use


def test_helpers_are_built_at_the_same_time(workshop):
    loaded, told = workshop("CXX", MEETS_ANOTHER), []
    names = {"_segment_sum", "_refine"}
    assert _prepare.missing_natives(names) == ["_refine", "_segment_sum"]
    _prepare.prepare_natives(names, lambda done, total: told.append((done, total)))
    assert (told[0], told[-1]) == ((0, 2), (2, 2))
    assert _prepare.missing_natives(names) == []
    assert loaded == ["_refine", "_segment_sum"]
    assert all(isinstance(_native._outcomes[name], Path) for name in names)


def test_what_is_built_is_not_built_again(workshop, tmp_path):
    workshop("CXX", "")
    _prepare.prepare_natives({"_refine"})
    _prepare._prepared.clear()  # as in the next process
    told = []
    _prepare.prepare_natives({"_refine"}, lambda done, total: told.append(done))
    assert told == []
    assert len(list(tmp_path.glob("running-*"))) == 1


def test_an_interrupt_ends_the_compilers(workshop, tmp_path):
    workshop("CC", "")
    workshop("CXX", "sleep 300")

    def interrupt(done, total):
        if done:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        _prepare.prepare_natives({"_mt19937", "_refine"}, interrupt)
    running = [int(path.name.partition("-")[2]) for path in tmp_path.glob("running-*")]
    assert not [pid for pid in running if Path(f"/proc/{pid}").exists()]
    # The one that was ended left no part of a library, and is no failure to be remembered.
    assert [path.name[:9] for path in (tmp_path / "native").glob("*.so")] == ["_mt19937-"]
    assert "_refine" not in _native._outcomes


def test_a_failure_is_not_tried_twice(workshop, monkeypatch, tmp_path):
    workshop("CXX", "exit 1")
    _prepare.prepare_natives({"_refine"})
    assert isinstance(_native._outcomes["_refine"], subprocess.CalledProcessError)
    assert _native.load_native.__wrapped__("_refine") is None
    assert len(list(tmp_path.glob("running-*"))) == 1


def test_without_a_compiler_there_is_nothing_to_build(workshop, monkeypatch):
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setattr(_native.shutil, "which", lambda _name: None)
    told = []
    _prepare.prepare_natives({"_refine"}, lambda done, total: told.append(done))
    assert told == []


def test_helpers_of_another_version_are_left_out(workshop):
    loaded = workshop("CXX", "")
    _prepare.prepare_natives({"_gone", "../../etc/passwd"})
    assert loaded == []


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="threads cannot be pinned here")
def test_compilers_may_use_every_core(workshop, tmp_path, monkeypatch):
    """The main thread of a benchmark is pinned to one core, which children would inherit."""
    everything = os.sched_getaffinity(0)
    if len(everything) < 2:
        pytest.skip("there is only one core")
    workshop("CXX", f'grep Cpus_allowed_list /proc/self/status > "{tmp_path}/cores"')
    monkeypatch.setattr(_threads, "_cores_before", everything)
    os.sched_setaffinity(0, {min(everything)})
    try:
        _prepare.prepare_natives({"_refine"})
        assert os.sched_getaffinity(0) == {min(everything)}
    finally:
        os.sched_setaffinity(0, everything)
    pinned = Path(f"/proc/{os.getpid()}/status").read_text()
    assert (tmp_path / "cores").read_text() in pinned
