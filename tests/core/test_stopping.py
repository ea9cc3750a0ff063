"""How commands end that are told to stop."""

import os
import signal

import pytest

from torchkiln.core import run_compiler, run_stoppable
from torchkiln.core._stopping import signals_deferred


def signalled(number, then=None):
    def command():
        try:
            os.kill(os.getpid(), number)
        finally:
            if then is not None:
                raise then
        return 0

    return command


@pytest.mark.parametrize(
    ("number", "code", "said"),
    [(signal.SIGINT, 130, "interrupted\n"), (signal.SIGTERM, 143, "terminated\n")],
)
def test_a_signal_is_an_exit_code_and_a_line(number, code, said, capsys):
    before = signal.getsignal(number)
    assert run_stoppable(signalled(number)) == code
    assert capsys.readouterr().err == said
    assert signal.getsignal(number) is before
    # Libraries that are interrupted while they are imported fail with errors of their own.
    assert run_stoppable(signalled(number, AttributeError("half imported"))) == code


def test_commands_and_errors_without_a_signal_are_left_alone():
    assert run_stoppable(lambda: 7) == 7
    with pytest.raises(ValueError, match="own"):
        run_stoppable(lambda: (_ for _ in ()).throw(ValueError("own")))


def test_whoever_handles_a_signal_keeps_it():
    seen = []
    before = signal.signal(signal.SIGTERM, lambda *_: seen.append("theirs"))
    try:
        assert run_stoppable(signalled(signal.SIGTERM)) == 0
    finally:
        signal.signal(signal.SIGTERM, before)
    assert seen == ["theirs"]


def test_a_forked_child_ends_as_any_process_does():
    def command():
        pid = os.fork()
        if pid == 0:
            os.kill(os.getpid(), signal.SIGTERM)
            os._exit(0)
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

    assert run_stoppable(command) == -signal.SIGTERM


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_deferred_signal_waits_for_the_end_of_the_block(number):
    steps = []

    def command():
        with signals_deferred():
            os.kill(os.getpid(), number)
            steps.append("the block is done")
        steps.append("never reached")
        return 0

    assert run_stoppable(command) == 128 + number
    assert steps == ["the block is done"]


def test_without_a_signal_nothing_is_deferred_and_handlers_are_back():
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    with signals_deferred():
        pass
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


def test_a_compiler_whose_start_is_interrupted_ends(tmp_path, monkeypatch):
    """The signal comes when the compiler runs already and its starter does not know of it yet."""
    import subprocess

    started = []
    original = subprocess.Popen

    def start(*args, **kwargs):
        process = original(*args, **kwargs)
        started.append(process)
        os.kill(os.getpid(), signal.SIGINT)
        return process

    monkeypatch.setattr(subprocess, "Popen", start)
    command = ["sh", "-c", "sleep 1000"]
    assert run_stoppable(lambda: run_compiler(command, tmp_path / "out.o")) == 130
    assert started[0].poll() is not None
