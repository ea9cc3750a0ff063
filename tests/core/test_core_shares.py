"""Processes on one host divide its cores."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from torchkiln.core import _core_shares
from torchkiln.core._core_shares import (
    cpu_quota,
    own_slice,
    slice_of,
    threads_of_user,
    within_quota,
)
from torchkiln.core._launch import Launch


@pytest.mark.parametrize("count", range(1, 9))
def test_slices_cover_all_cores_once_and_differ_by_one(count):
    cores = [1, 2, 3, 8, 9, 10, 11, 20]
    slices = [slice_of(cores, index, count) for index in range(count)]
    assert [core for some in slices for core in some] == cores
    assert {len(some) for some in slices} <= {8 // count, 8 // count + 1}


def test_more_processes_than_cores_get_one_each():
    assert [slice_of([4, 5], index, 3) for index in range(3)] == [[4], [5], [4]]


def test_ranks_of_torchrun_divide_what_all_of_them_may_use():
    launch = Launch("torchrun", 5, 8, 1, 2)
    assert own_slice([0, 1, 2, 3], launch) == [2, 3]
    assert own_slice([0, 1, 2, 3], None) == [0, 1, 2, 3]
    assert own_slice([0, 1, 2, 3], Launch("torchrun", 1, 2, None, None)) == [0, 1, 2, 3]


def test_ranks_that_have_cores_of_their_own_keep_them(monkeypatch):
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    launch = Launch("Open MPI", 1, 2, 1, 2)
    assert own_slice([4, 5, 6, 7], launch) == [4, 5, 6, 7]  # mpirun --bind-to socket
    assert own_slice(list(range(8)), launch) == [4, 5, 6, 7]  # mpirun --bind-to none


def test_tasks_of_slurm_divide_the_cores_of_a_job_that_binds_none(monkeypatch):
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    monkeypatch.setenv("SLURM_CPUS_ON_NODE", "4")
    assert own_slice([0, 1, 2, 3], Launch("SLURM", 0, 2, 0, 2)) == [0, 1]
    assert own_slice([2, 3], Launch("SLURM", 1, 2, 1, 2)) == [2, 3]


@pytest.mark.parametrize(("text", "cores"), [("max 100000", None), ("150000 100000", 1.5)])
def test_quotas_of_containers_are_read(tmp_path, text, cores):
    (tmp_path / "cpu.max").write_text(text)
    assert cpu_quota(tmp_path / "cpu.max") == cores
    assert cpu_quota(tmp_path / "none") is None


def test_processes_share_a_quota(monkeypatch):
    monkeypatch.setattr(_core_shares, "cpu_quota", lambda: 4.0)
    assert within_quota(range(16)) == 4
    assert within_quota(range(8), num_processes=2) == 2
    assert within_quota(range(2), num_processes=8) == 1
    assert within_quota(range(2)) == 2


def test_a_number_of_threads_that_somebody_set_counts():
    assert threads_of_user({"OMP_NUM_THREADS": "3"}) == 3
    assert threads_of_user({"OMP_NUM_THREADS": "3,2"}) == 3
    assert threads_of_user({"OMP_NUM_THREADS": "1"}) == 1
    assert threads_of_user({}) is None
    assert threads_of_user({"OMP_NUM_THREADS": "many"}) is None


# What torchrun does: it changes its own environment, and starts a process with that and more.
AGENT = """
import os, subprocess, sys
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ["TORCHELASTIC_RUN_ID"] = "none"
code = "from torchkiln.core._core_shares import threads_of_user; print(threads_of_user())"
command = [sys.executable, "-c", code]
if sys.argv[1] == "shell":
    command = ["/bin/sh", "-c", '"$@"; true', "sh", *command]
sys.exit(subprocess.call(command))
"""


@pytest.mark.parametrize("between", ["nothing", "shell"])
@pytest.mark.parametrize(("given", "counts"), [(None, "None"), ("1", "1"), ("2", "2")])
def test_the_one_thread_that_torchrun_sets_is_not_the_users(between, given, counts):
    environment = {k: v for k, v in os.environ.items() if k != "OMP_NUM_THREADS"}
    environment |= {} if given is None else {"OMP_NUM_THREADS": given}
    done = subprocess.run(
        [sys.executable, "-c", AGENT, between],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert done.stdout.strip() == counts
