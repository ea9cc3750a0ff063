import os
import subprocess
import sys

import pytest

from torchkiln.core._threads import on_all_cores

CORES = len(os.sched_getaffinity(0))

# A process of two cores whose main thread OpenMP has pinned to one; a child says where it may run.
FORKING = """
import os
moves = []
os.sched_getaffinity = lambda process: {0, 1}
os.sched_setaffinity = lambda process, cores: moves.append(set(cores))
from torchkiln.core._threads import pin_threads, usable_cores
assert pin_threads() == 2
os.sched_getaffinity = lambda process: {0}
assert usable_cores() == {0, 1}
child = os.fork()
if not child:
    os._exit(0 if moves == [{0, 1}] else 1)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0, "the child stays on one core"
assert not moves, "the main thread was moved"
"""


def run(program):
    return subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False
    )


def test_forked_processes_may_leave_the_core_of_the_main_thread():
    done = run(FORKING)
    assert done.returncode == 0, done.stderr


def test_more_threads_than_cores_are_refused():
    done = run(f"from torchkiln.core._threads import pin_threads; pin_threads({CORES + 1})")
    assert f"OptionsError: threads must be at most {CORES}" in done.stderr


def test_threads_may_use_all_cores_for_a_while(monkeypatch):
    moves = []
    monkeypatch.setattr("torchkiln.core._threads._cores_before", {0, 1})
    monkeypatch.setattr("os.sched_getaffinity", lambda process: {0})
    monkeypatch.setattr("os.sched_setaffinity", lambda process, cores: moves.append(set(cores)))
    with on_all_cores():
        assert moves == [{0, 1}]
    assert moves == [{0, 1}, {0}]


# A process of four cores that a launcher started as the second of two on this host.
RANK = """
import os
os.sched_getaffinity = lambda process: {0, 1, 2, 3}
from torchkiln.core._threads import pin_threads, threads_are_chosen, usable_cores
count = pin_threads(THREADS)
assert pin_threads(THREADS) == count, "divided twice"
assert threads_are_chosen()
print(count, os.environ["OMP_NUM_THREADS"], os.environ["GOMP_CPU_AFFINITY"], sorted(usable_cores()))
"""
LAUNCHED = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}


@pytest.mark.parametrize(
    ("threads", "variables", "told"),
    [
        (None, {}, "2 2 2 3 [2, 3]"),
        (1, {}, "1 1 2 [2, 3]"),
        (None, {"OMP_NUM_THREADS": "1"}, "1 1 2 [2, 3]"),
        (None, {"OMP_NUM_THREADS": "1", "TORCHELASTIC_RUN_ID": "none"}, "2 2 2 3 [2, 3]"),
        (4, {}, "4 4 2 3 0 1 [0, 1, 2, 3]"),
    ],
)
def test_a_rank_pins_its_threads_to_its_share_of_the_cores(threads, variables, told, monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    for name, value in {**LAUNCHED, **variables}.items():
        monkeypatch.setenv(name, value)
    done = run(RANK.replace("THREADS)", f"{threads})"))
    assert done.stdout.strip() == told, done.stderr
