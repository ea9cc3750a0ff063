"""A report from the calls that a program makes anyway: `Options(profile_dir=...)`."""

from __future__ import annotations

import atexit
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torchkiln.core import TorchkilnError, span, warn_user
from torchkiln.core._other_processes import Reading
from torchkiln.core._progress import say
from torchkiln.profiling.graph._profile import folder_name, make_profile
from torchkiln.profiling.graph._recorder import CallRecorder
from torchkiln.profiling.views._write import write_report
from torchkiln.runtime import Program
from torchkiln.runtime._inspection import ProgramView

# The first calls are slower: memory is new, caches are cold.
_WARM_CALLS = 2
_CALLS = 50
_SECONDS = 3.0
_LEAST_CALLS = 5


def watch_program(
    program: Program, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> AutomaticProfile | None:
    """Begin to watch a program that is compiled now; None if it cannot be profiled.

    A step that does not fit into the memory gets its report at once: it may never get further.
    """
    assert program.options.profile_dir is not None
    folder = program.options.profile_dir / folder_name(program)
    try:
        view = program.view(*args, **kwargs)
        watcher = AutomaticProfile(program, view, folder)
        plan = make_profile(program, view, [], None)
        if plan.liveness is not None and not plan.liveness.fits:
            _write(plan, folder)
            advice = plan.liveness.advice[:1]
            warn_user(
                f"a step of {plan.model} needs more memory than is free; {folder / 'report.html'} "
                f"tells what for{'; what helps most: ' + advice[0] if advice else ''}"
            )
    except TorchkilnError as error:
        warn_user(f"there will be no profile of {program.name!r}: {error}")
        return None
    return watcher


class AutomaticProfile:
    """Measures the calls of a program until there are enough, and then writes the report."""

    def __init__(self, program: Program, view: ProgramView, folder: Path) -> None:
        program.executor.check_clocked()
        self._program = weakref.ref(program)
        self._view = view
        self._folder = folder
        self._recorder = CallRecorder()
        self._stop_listening = self._recorder.listen()
        self._num_calls = 0
        self._start_s = time.perf_counter()
        self._others = Reading()
        # A program that ends early has a report of what there was.
        atexit.register(self.finish)

    def call(self, program: Program, run: Callable[[], Any]) -> Any:
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

    def finish(self) -> None:
        """Write the report of the calls so far; nothing if there were none."""
        atexit.unregister(self.finish)
        self._stop_listening()
        program = self._program()
        calls, self._recorder.calls = self._recorder.calls, []
        if program is None or not calls or not program.is_compiled:
            return
        warm = calls[_WARM_CALLS:] or calls[-1:]
        with span("profile", "write the report"):
            load = Reading().load_since(self._others)
            _write(make_profile(program, self._view, warm, load), self._folder)
            say(f"profile of {program.name}: {self._folder / 'report.html'}")


def _write(profile: Any, folder: Path) -> None:
    try:
        write_report(profile, folder)
    except OSError as error:
        warn_user(
            f"the profile could not be written to {folder} ({error}); free some space, or choose "
            "another profile_dir"
        )
