"""Eight processes that begin with one empty cache: each program is made once, all get the same."""

from __future__ import annotations

import contextlib
import json
import subprocess
from pathlib import Path

import pytest
from _amount import amount
from _processes import PATIENCE_S, child, environment

PROCESSES = 8
ROUNDS = amount(10, 300)
HERE = Path(__file__).parent
_PIPES = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}


def start(stack: contextlib.ExitStack, *arguments: str, **variables: str) -> subprocess.Popen:
    keywords = {"text": True, "env": environment(**variables), **_PIPES}
    return stack.enter_context(child(["-W", "ignore", *arguments], **keywords))


def output(process: subprocess.Popen) -> str:
    out, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, err
    return out


def makers_of_each_round(folder: Path, processes: int, rounds: int, *how: str) -> list[int]:
    """Let processes ask for the same keys at once; return how many made each package."""
    script = str(HERE / "_shared_cache.py")
    with contextlib.ExitStack() as stack:
        started = [
            start(stack, script, str(folder), str(rounds), str(number), *how)
            for number in range(processes)
        ]
        for process in started:
            assert process.stdout.readline() == "ready\n"
        for process in started:
            process.stdin.write("go\n")
            process.stdin.flush()
        made = [list(map(int, output(process).split())) for process in started]
    return [sum(turn) for turn in zip(*made, strict=True)]


def test_packages_are_made_once_however_many_ask_at_the_same_time(tmp_path, survived):
    processes = PROCESSES if ROUNDS > 10 else 3
    assert makers_of_each_round(tmp_path, processes, ROUNDS) == [1] * ROUNDS
    assert not list(tmp_path.rglob("*.torchkiln-tmp"))
    survived("a race of processes for an entry of the cache", ROUNDS)


@pytest.mark.faults
def test_a_cache_in_which_nobody_waits_is_found(tmp_path):
    """Else the test above would pass whatever the cache did."""
    assert max(makers_of_each_round(tmp_path, PROCESSES, 100, "unlocked")) > 1


@pytest.mark.faults
@pytest.mark.inductor
def test_eight_processes_compile_a_program_once(tmp_path, survived):
    script = str(HERE / "_tiny_native.py")
    with contextlib.ExitStack() as stack:
        started = [start(stack, script, str(tmp_path / "cache")) for _ in range(PROCESSES)]
        results = [json.loads(output(process).splitlines()[-1]) for process in started]
    assert sum(result["compiles"] for result in results) == 1
    assert all(result["losses"] == results[0]["losses"] for result in results)
    assert not list(tmp_path.rglob("*.torchkiln-tmp"))
    survived("a race of processes for an entry of the cache")
