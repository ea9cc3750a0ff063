"""Processes find each other, or say why not, in time."""

from __future__ import annotations

import os
import re
import shutil
import socket
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from launching import SOURCE, Outcome, bare, command, free_port, start_bare

STARTING = Path(__file__).with_name("_starting.py")
ADOPTING = Path(__file__).with_name("_adopting.py")
NO_TORCHRUN = {"RANK": "", "WORLD_SIZE": "", "LOCAL_RANK": "", "LOCAL_WORLD_SIZE": ""}
CORES = sorted(os.sched_getaffinity(0))


def run_some(ranks: Sequence[int], of: int, timeout_s: float = 3) -> list[Outcome]:
    with start_bare(STARTING, str(timeout_s), ranks=of, only=ranks) as running:
        return [one.wait(60) for one in running]


def refusal(outcome: Outcome, within_s: float) -> str:
    """Return the message of a process that gave up in time, with nothing else to say."""
    found = re.fullmatch(r"after (.*) s: (.*)\n", outcome.stdout)
    assert found is not None, outcome.output
    assert outcome.returncode == 3
    assert float(found[1]) < within_s
    assert "Traceback" not in outcome.stderr
    return found[2]


def test_alone_there_is_no_group():
    with command([sys.executable, str(STARTING), "20"]) as running:
        outcome = running.wait().ok()
    assert outcome.stdout.startswith("World(rank=0, size=1, local_rank=0, local_size=1)")
    assert outcome.stderr == ""


def test_two_processes_divide_the_cores_and_talk_over_the_loopback():
    outcomes = bare(STARTING, "20")
    half = -(-len(CORES) // 2)
    shares = [CORES[:half], CORES[half:] or CORES]
    for rank, outcome in enumerate(outcomes):
        text = outcome.ok().stdout
        assert text.startswith(f"World(rank={rank}, size=2, local_rank={rank}, local_size=2)")
        assert f"threads={len(shares[rank])} cores={shares[rank]} interface=lo" in text
        assert outcome.stderr == "", "they leave without noise"


@pytest.mark.slow
def test_threads_that_the_user_chose_are_kept():
    for outcome in bare(STARTING, "20", env={"OMP_NUM_THREADS": str(len(CORES))}):
        assert f"threads={len(CORES)} cores={CORES}" in outcome.ok().stdout


def test_a_group_that_exists_is_taken():
    for rank, outcome in enumerate(bare(ADOPTING)):
        assert outcome.ok().stdout == f"rank {rank} is done\n"
        assert outcome.stderr == ""


def test_one_of_two_ranks_was_not_started():
    message = refusal(run_some([0], of=2)[0], within_s=6)
    assert message.startswith("rank 1 of 2 did not come within 3 s. Start all 2 processes")
    # Variables of a launcher may be still there from another run.
    assert message.endswith("remove WORLD_SIZE, which says that torchrun started it with 1 more")


def test_rank_0_was_not_started():
    message = refusal(run_some([1], of=2)[0], within_s=6)
    assert re.match(r"nobody answers at 127.0.0.1:\d+ within 3 s .*refused.*rank 0", message)
    assert "this is process 1 of 2: if it is to train alone, remove WORLD_SIZE" in message


@pytest.mark.slow
def test_those_who_came_name_those_who_did_not():
    for outcome in run_some([0, 3], of=4):
        assert refusal(outcome, within_s=6).startswith("ranks 1, 2 of 4 did not come within 3 s")


@pytest.mark.slow
def test_a_rank_that_was_started_twice():
    port = {"MASTER_PORT": str(free_port())}
    with start_bare(STARTING, "4", ranks=3, only=[0], env=port) as (first,):
        twice = {"RANK": "1", "WORLD_SIZE": "3", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "3", **port}
        with (
            start_bare(STARTING, "4", only=[0], env=twice) as (one,),
            start_bare(STARTING, "4", only=[0], env=twice) as (other,),
        ):
            texts = [process.wait(60).stdout for process in (one, other)]
        first.wait(60)
    assert sum("there is a rank 1 already" in text for text in texts) == 1


def test_a_port_that_is_in_use():
    """By a program that is no store, and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = str(server.getsockname()[1])
        first, second = bare(STARTING, "3", env={"MASTER_PORT": port})
    assert f"port {port} on this host is in use" in refusal(first, within_s=3)
    assert "set MASTER_PORT to a free one" in first.stdout
    assert "there is no store of this run" in refusal(second, within_s=8)


@pytest.mark.slow
def test_several_hosts_without_an_address_and_hosts_that_nobody_knows():
    several = {"MASTER_ADDR": "", "LOCAL_WORLD_SIZE": "1", "LOCAL_RANK": "0"}
    for outcome in bare(STARTING, "20", env=several):
        assert "MASTER_ADDR is not set" in refusal(outcome, within_s=3)
    for outcome in bare(STARTING, "20", env={"MASTER_ADDR": "nowhere.invalid"}):
        assert "no host called 'nowhere.invalid'" in refusal(outcome, within_s=10)


def slurm(rank: int, **more: str) -> dict[str, str]:
    return NO_TORCHRUN | {
        "MASTER_ADDR": "",
        "MASTER_PORT": "",
        # A job of our own: the port comes from its number.
        "SLURM_JOB_ID": f"{os.getpid()}",
        "SLURM_NTASKS": "2",
        "SLURM_PROCID": str(rank),
        "SLURM_LOCALID": str(rank),
        "SLURM_NODEID": "0",
        **more,
    }


def test_tasks_of_a_step_of_slurm_find_each_other():
    step = {
        "SLURM_STEP_ID": "0",
        "SLURM_STEP_NUM_TASKS": "2",
        "SLURM_STEP_TASKS_PER_NODE": "2",
    }
    with (
        start_bare(STARTING, "20", only=[0], env=slurm(0, **step)) as (first,),
        start_bare(STARTING, "20", only=[0], env=slurm(1, **step)) as (second,),
    ):
        outcomes = first.wait(60).ok(), second.wait(60).ok()
    for rank, outcome in enumerate(outcomes):
        assert f"World(rank={rank}, size=2, local_rank={rank}, local_size=2)" in outcome.stdout


def test_a_shell_of_salloc_is_alone_and_does_not_wait():
    with start_bare(STARTING, "20", only=[0], env=slurm(0)) as (shell,):
        assert "size=1" in shell.wait(20).ok().stdout


@pytest.mark.slow
def test_mpirun_for_real():
    if shutil.which("mpirun") is None:
        pytest.skip("there is no mpirun here; Debian has it in openmpi-bin")
    words = ["mpirun", "--allow-run-as-root", "--oversubscribe", "-n", "2"]
    script = [sys.executable, str(STARTING), "20"]
    with command([*words, *script], env={"PYTHONPATH": str(SOURCE)}) as running:
        outcome = running.wait(60).ok()
    for rank in range(2):
        assert f"World(rank={rank}, size=2, local_rank={rank}, local_size=2)" in outcome.stdout
    # A shell between mpirun and Python has other parents, but the job is the same.
    shell = ["sh", "-c", f"'{sys.executable}' '{STARTING}' 20; exit $?"]
    port = {"MASTER_PORT": str(free_port()), "PYTHONPATH": str(SOURCE)}
    for env in ({"PYTHONPATH": str(SOURCE)}, port):
        with command([*words, *shell], env=env) as running:
            assert running.wait(60).ok().stdout.count(" size=2") == 2
