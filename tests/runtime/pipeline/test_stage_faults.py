"""A stage that is lost, stopped or wrong ends all of them, with its name."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

import pytest
from launching import Outcome, start_bare

SCRIPT = Path(__file__).with_name("_stage_faults.py")
ONE_THREAD = {"OMP_NUM_THREADS": "1"}
# Far below the time limit of messages, on a busy machine, too. Mostly it takes 1 s.
SOON_S = 45.0


def with_fault(fault: str, victim: int, timeout_s: float = 100) -> list[Outcome]:
    arguments = (fault, str(victim), str(timeout_s))
    with start_bare(SCRIPT, *arguments, ranks=2, env=ONE_THREAD) as running:
        outcomes = [
            one.wait(130) if rank != victim or fault != "stopped" else None
            for rank, one in enumerate(running)
        ]
        if fault == "stopped":
            os.killpg(running[victim].process.pid, signal.SIGKILL)
        return outcomes


def said_by(rank: int, outcome: Outcome) -> tuple[float, str]:
    """Return after how many seconds a rank noticed something, and what it said."""
    found = re.search(rf"^rank {rank} after (.*) s: (.*)$", outcome.stdout, re.MULTILINE)
    assert found is not None, outcome.output
    assert outcome.returncode == 3, outcome.output
    return float(found[1]), found[2]


@pytest.mark.parametrize("victim", [pytest.param(0, marks=pytest.mark.slow), 1])
def test_a_killed_stage_is_named_at_once(victim):
    seconds, text = said_by(1 - victim, with_fault("killed", victim)[1 - victim])
    assert seconds < SOON_S
    where = f"was lost while rank {1 - victim} was at update"
    assert re.match(rf"rank {victim} \(process \d+ on .*\) {where}", text)


@pytest.mark.slow
def test_a_stopped_stage_is_named_after_the_time_limit():
    seconds, text = said_by(0, with_fault("stopped", 1, timeout_s=3)[0])
    assert 2.5 < seconds < 3 + SOON_S
    assert re.match(r"rank 1 \(process \d+ on .*\) did not answer within 3 s while rank 0", text)


def test_an_error_in_the_middle_of_a_call_ends_the_other_stage_too():
    first, second = with_fault("raises", 1)
    assert said_by(1, second)[1] == "bad data"
    seconds, text = said_by(0, first)
    assert seconds < SOON_S
    assert "ended by ValueError: bad data" in text


def test_stages_that_are_called_with_other_data_are_told_so():
    first, second = with_fault("other data", 1)
    assert "was called with other arguments than rank 0" in said_by(1, second)[1]
    assert "was called with other arguments" in said_by(0, first)[1]


@pytest.mark.slow
def test_stages_that_would_update_with_other_numbers_are_told_so():
    for rank, outcome in enumerate(with_fault("other rate", 1)):
        assert "rank 1 would update with other numbers than rank 0" in said_by(rank, outcome)[1]
