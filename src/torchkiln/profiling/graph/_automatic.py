"""A report from the calls that a program makes anyway: `Options(profile_dir=...)`."""

from __future__ import annotations

import itertools
import os
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torchkiln.core import TorchkilnError, span, warn_user
from torchkiln.core._other_processes import Reading
from torchkiln.core._progress import say
from torchkiln.profiling.graph._profile import ProgramFacts, facts_of, make_profile
from torchkiln.profiling.graph._recorder import CallRecorder
from torchkiln.profiling.views._write import write_report
from torchkiln.report._memory_verdict import describe_size
from torchkiln.runtime import Program
from torchkiln.runtime._inspection import ProgramView

# The first calls are slower: memory is new, caches are cold.
_WARM_CALLS = 2
_CALLS = 50
_SECONDS = 3.0
_LEAST_CALLS = 5

# Folders that programs of this process have, so that none writes over the report of another.
_taken: set[Path] = set()


def watch_program(
    program: Program, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> AutomaticProfile | None:
    """Begin to watch a program that is compiled now; None if it cannot be profiled.

    A step that does not fit into the memory gets its report at once: it may never get further.
    """
    assert program.options.profile_dir is not None
    try:
        facts, view = facts_of(program), program.view(*args, **kwargs)
        program.executor.check_clocked()
    # Broad, because the view records forward once more: it is the user's code and may raise
    # anything, while the program is compiled and can run.
    except Exception as error:
        ours = isinstance(error, TorchkilnError)
        told = str(error) if ours else f"its forward raised {type(error).__name__}: {error}"
        warn_user(f"there will be no profile of {program.name!r}, which runs without one: {told}")
        return None
    plan = make_profile(facts, view, [], None)
    watcher = AutomaticProfile(program, facts, view)
    if plan.liveness is not None and not plan.liveness.fits and _write(plan, watcher.folder):
        advice = plan.liveness.advice[:1]
        warn_user(
            f"a step of {plan.model} needs {describe_size(plan.liveness.total_bytes)}, and only "
            f"{describe_size(plan.liveness.machine_bytes)} are free; "
            f"{watcher.folder / 'report.html'} tells what for"
            f"{'; what helps most: ' + advice[0] if advice else ''}"
        )
    return watcher


class AutomaticProfile:
    """Measures the calls of a program until there are enough, and then writes the report."""

    def __init__(self, program: Program, facts: ProgramFacts, view: ProgramView) -> None:
        assert facts.options.profile_dir is not None
        self.folder = _take_folder(facts.options.profile_dir.absolute() / facts.folder)
        self._name = program.name
        self._facts = facts
        self._view = view
        self._recorder = CallRecorder()
        self._stop_listening = self._recorder.listen()
        self._num_calls = 0
        self._start_s = time.perf_counter()
        self._others = Reading()
        self._process = os.getpid()
        # A program that ends early, or that nobody holds any more, has a report of what there was.
        self._at_the_end = weakref.finalize(program, self.finish)
        self._is_finished = False

    def call(self, program: Program, run: Callable[[], Any]) -> Any:
        return run() if self._is_finished else self._measure(program, run)

    def _measure(self, program: Program, run: Callable[[], Any]) -> Any:
        result = self._recorder.call(program, run)
        self._num_calls += 1
        if self._num_calls == _WARM_CALLS:
            self._start_s = time.perf_counter()
        seconds = time.perf_counter() - self._start_s
        measured = self._num_calls - _WARM_CALLS
        if measured >= _CALLS or (measured >= _LEAST_CALLS and seconds > _SECONDS):
            start = time.perf_counter()
            program.finish_profile()
            program.seconds_aside += time.perf_counter() - start
        return result

    def forget_the_loop(self) -> None:
        """Count nothing of what comes before the next call: somebody else used the program."""
        self._recorder.forget_the_loop()

    def finish(self) -> None:
        """Write the report of the calls so far; nothing if there were none."""
        if self._is_finished:
            return
        self._is_finished = True
        self._at_the_end.detach()
        self._stop_listening()
        calls, self._recorder.calls = self._recorder.calls, []
        # The report of a process is not for those that it forks.
        if not calls or os.getpid() != self._process:
            _taken.discard(self.folder)
            return
        warm = calls[_WARM_CALLS:] or calls[-1:]
        with span("profile", "write the report"):
            load = Reading().load_since(self._others)
            if _write(make_profile(self._facts, self._view, warm, load), self.folder):
                say(f"profile of {self._name}: {self.folder / 'report.html'}")


def _take_folder(wanted: Path) -> Path:
    """Return the folder, with a number behind its name if a program of this process has it."""
    names = itertools.chain([""], (f"-{number}" for number in itertools.count(2)))
    folder = next(f for name in names if (f := wanted.with_name(wanted.name + name)) not in _taken)
    _taken.add(folder)
    return folder


def _write(profile: Any, folder: Path) -> bool:
    """Write a report; return whether that was possible."""
    try:
        write_report(profile, folder)
    except OSError as error:
        warn_user(
            f"the profile could not be written to {folder} ({error}); free some space, or choose "
            "another profile_dir"
        )
        return False
    return True
