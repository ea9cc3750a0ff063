import os
import subprocess
import sys

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
