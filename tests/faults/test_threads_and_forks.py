"""Programs in two threads at once, and in children that were forked after they were compiled."""

from __future__ import annotations

import os
import signal
import threading
import time

import pytest
import torch
from _amount import amount
from _tiny_native import losses_of, make_program

BACKENDS = ["capture", pytest.param("inductor", marks=[pytest.mark.faults, pytest.mark.inductor])]
STEPS = amount(3, 50)
# One thread adds up in another order than two.
RELATIVE = 1e-5


@pytest.mark.parametrize("backend", BACKENDS)
def test_two_programs_in_two_threads_compute_what_they_compute_alone(backend, cache_dir, survived):
    alone = [losses_of(make_program(cache_dir, seed, backend), STEPS, seed) for seed in (1, 2)]
    programs = [make_program(cache_dir, seed, backend) for seed in (1, 2)]
    together: dict[int, list[float]] = {}
    begin = threading.Barrier(2)

    def work(index: int) -> None:
        torch.set_num_threads(2)
        begin.wait()
        together[index] = losses_of(programs[index], STEPS, index + 1)

    threads = [threading.Thread(target=work, args=(index,)) for index in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert together == {0: alone[0], 1: alone[1]}
    survived("steps of two programs in two threads at once", 2 * STEPS)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_forked_child_runs_the_program(backend, cache_dir, survived):
    """OpenMP's threads do not exist in the child; waiting for them would be for ever."""
    program = make_program(cache_dir, backend=backend)
    losses_of(program, 2)
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            os.write(writing, repr(losses_of(program, 3)).encode())
            code = 0
        finally:
            os._exit(code)  # whatever happens: never the rest of the tests
    os.close(writing)
    code = wait_for(pid)
    with open(reading, "rb") as pipe:
        told = pipe.read().decode()
    assert code == 0, f"the child ended with {code} and said {told!r}"
    # The parent is as it was, and computes the same.
    expected = losses_of(program, 3)
    assert eval(told) == pytest.approx(expected, rel=RELATIVE)
    survived("a fork after a program was compiled")


def wait_for(pid: int) -> int:
    """Return the exit code of a child; one that hangs is killed."""
    deadline_s = time.monotonic() + 60
    while time.monotonic() < deadline_s:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    os.kill(pid, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
