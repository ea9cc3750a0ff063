"""Processes talk to each other, and name the one that is lost."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

import pytest
from launching import Outcome, start_bare, start_torchrun, torchrun

CHECKS = Path(__file__).with_name("_group_checks.py")
FAULTS = Path(__file__).with_name("_group_faults.py")
CORES = len(os.sched_getaffinity(0))


def said_by(rank: int, outcome: Outcome) -> tuple[float, str]:
    """Return after how many seconds a rank noticed something, and what it said."""
    found = re.search(rf"^rank {rank} after (.*) s: (.*)$", outcome.stdout, re.MULTILINE)
    assert found is not None, outcome.output
    return float(found[1]), found[2]


def with_fault(fault: str, victim: int, timeout_s: float = 20, ranks: int = 2) -> list[Outcome]:
    with start_bare(FAULTS, fault, str(victim), str(timeout_s), ranks=ranks) as running:
        outcomes = [
            one.wait(60) if rank != victim or "stopped" not in fault else None
            for rank, one in enumerate(running)
        ]
        os.killpg(running[victim].process.pid, signal.SIGKILL) if "stopped" in fault else None
        return outcomes


def test_two_ranks_talk(tmp_path):
    outcome = torchrun(CHECKS, str(tmp_path)).ok()
    threads = max(CORES // 2, 1)
    for rank in range(2):
        assert f"rank {rank} is done with {threads} threads" in outcome.stdout
    # Nothing is left to say when they leave; torchrun itself speaks of threads.
    assert "rank" not in outcome.stderr, outcome.stderr


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [3, 4])
def test_more_ranks_talk(tmp_path, ranks):
    outcome = torchrun(CHECKS, str(tmp_path), ranks=ranks, timeout_s=120).ok()
    assert outcome.stdout.count("is done") == ranks


def test_a_rank_that_was_killed_is_named_at_once():
    survivor = with_fault("killed", 1)[0]
    seconds, text = said_by(0, survivor)
    assert seconds < 5
    assert re.match(r"rank 1 \(process \d+ on .*\) was lost while rank 0 was at update 12: ", text)
    assert survivor.returncode == 3


def test_rank_0_takes_the_store_with_it():
    seconds, text = said_by(1, with_fault("killed", 0)[1])
    assert seconds < 5
    assert re.match(r"rank 0 \(process \d+ on .*\) was lost while rank 1 was at update 12", text)
    assert "and with it the store" in text


def test_a_rank_that_is_stopped_is_named_after_the_time_limit():
    seconds, text = said_by(0, with_fault("stopped", 1, timeout_s=3)[0])
    assert 2.5 < seconds < 8
    assert re.match(r"rank 1 \(process \d+ on .*\) did not answer within 3 s while rank 0", text)
    assert "SIGSTOP" in text


def test_who_waits_for_a_message_of_a_killed_rank_names_it_at_once():
    seconds, text = said_by(0, with_fault("killed before a message", 1)[0])
    assert seconds < 5
    assert re.match(r"rank 1 \(process \d+ on .*\) was lost while rank 0 was at update 12: ", text)


def test_who_waits_for_a_message_of_a_stopped_rank_names_it_after_the_time_limit():
    seconds, text = said_by(0, with_fault("stopped before a message", 1, timeout_s=3)[0])
    assert 2.5 < seconds < 8
    assert re.match(r"rank 1 \(process \d+ on .*\) did not answer within 3 s while rank 0", text)


def test_who_waits_for_a_message_of_a_rank_that_gave_up_hears_why():
    outcomes = with_fault("abandons before a message", 1)
    seconds, text = said_by(0, outcomes[0])
    assert seconds < 5
    assert "rank 1 at update 12, ended by ValueError: bad data" in text
    assert "same order" not in text, "advice that does not help here"
    assert outcomes[1].returncode == 0, outcomes[1].output


def test_ranks_that_do_different_things_are_told_so():
    text = said_by(0, with_fault("elsewhere", 1, timeout_s=2)[0])[1]
    assert "the processes do not do the same: rank 0 at update 12, rank 1 at valid" in text


@pytest.mark.parametrize(
    ("fault", "place"),
    [
        ("killed in a meeting", "saving"),
        pytest.param("killed at work", "compile", marks=pytest.mark.slow),
    ],
)
def test_one_that_dies_while_others_wait_for_it_without_limit(fault, place):
    seconds, text = said_by(0, with_fault(fault, 1)[0])
    assert seconds < 5
    assert f"was lost while rank 0 was at update 12, {place}:" in text


def test_under_torchrun_the_store_outlives_rank_0():
    with start_torchrun(FAULTS, "killed", "0", "20") as running:
        outcome = running.wait(60)
    seconds, text = said_by(1, outcome)
    assert seconds < 5
    assert re.match(r"rank 0 \(process \d+ on .*\) was lost while rank 1", text)
    assert "store" not in text


@pytest.mark.slow
def test_under_torchrun_a_late_rank_hears_that_the_others_gave_up_on_it():
    with start_torchrun(FAULTS, "slow", "1", "3") as running:
        outcome = running.wait(60)
    assert "did not answer within 3 s" in said_by(0, outcome)[1]
    assert "the other processes gave up on rank 1, this process" in said_by(1, outcome)[1]


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["raises", "ends"])
def test_a_rank_that_leaves_is_named(fault):
    seconds, text = said_by(0, with_fault(fault, 1)[0])
    assert seconds < 5
    assert re.match(r"rank 1 \(process \d+ on .*\) was lost", text)


@pytest.mark.slow
def test_a_rank_that_is_stopped_while_others_wait_without_limit():
    seconds, text = said_by(1, with_fault("stopped at work", 0, timeout_s=3)[1])
    assert 2.5 < seconds < 10
    assert re.match(r"rank 0 \(process \d+ on .*\) did not answer within 3 s", text)


@pytest.mark.slow
@pytest.mark.parametrize("victim", [1, 3])
def test_all_of_four_ranks_name_the_same_one(victim):
    """Also those that exchange nothing with it."""
    outcomes = with_fault("killed", victim, ranks=4)
    for rank in set(range(4)) - {victim}:
        seconds, text = said_by(rank, outcomes[rank])
        assert seconds < 5
        assert re.match(rf"rank {victim} \(process \d+ on \S+\) was lost while rank {rank}", text)


@pytest.mark.slow
def test_of_four_ranks_the_stopped_one_alone_is_named():
    outcomes = with_fault("stopped", 2, timeout_s=4, ranks=4)
    for rank in (0, 1, 3):
        seconds, text = said_by(rank, outcomes[rank])
        assert seconds < 9
        assert re.match(r"rank 2 \(process \d+ on \S+\) did not answer", text)
