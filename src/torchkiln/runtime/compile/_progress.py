"""The "Graph compilation" bar: moved by what really happens, not by a clock."""

from __future__ import annotations

import contextlib
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any, Self

from torchkiln.core import span
from torchkiln.core._beacon import compile_phase
from torchkiln.ops._prepare import missing_natives, prepare_natives
from torchkiln.runtime.compile._bar import ClockBar
from torchkiln.torch_internals._inductor_patches import around_builds

# Where each phase ends, in percent: shares of a typical build.
_ENDS = {"capture": 10, "code generation": 40, "C++ compilation": 95, "packaging": 100}
# Where native helpers end, if there are some to be built; all later phases move together then.
_HELPERS_END = 40
# An AOTInductor build runs about this many compiler commands.
_TYPICAL_COMMANDS = 4
# Below this many columns there is no room for both a long title and a phase.
_NARROW_COLUMNS = 80


class CompileProgress:
    """A bar of 100 steps that follows the phases of a build.

    Args:
        show: Whether to draw it, if somebody watches.
        name: Of the program, such as "training step".
    """

    def __init__(self, show: bool, name: str = "program") -> None:
        is_narrow = shutil.get_terminal_size().columns < _NARROW_COLUMNS
        self._bar = ClockBar(100, "Compiling" if is_narrow else "Graph compilation", show=show)
        self._name = name
        self._phase = ""
        # How long each phase took so far.
        self.seconds: dict[str, float] = {}
        self._entered_s = 0.0
        self._span: contextlib.AbstractContextManager[None] = contextlib.nullcontext()
        # Where the entries begin, and where the present one begins and ends.
        self._base = float(_ENDS["capture"])
        self._entry_start = self._entry_end = self._base

    def __enter__(self) -> Self:
        self.enter("capture")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._leave()
        if kind is None:
            self._bar.say(self._name)
            self._bar.advance_to(100)
        self._bar.close()

    @property
    def percent(self) -> int:
        """How much is done."""
        return self._bar.place

    def enter(self, phase: str) -> None:
        """Begin a phase; the one before is done."""
        self._leave()
        self._phase = phase
        compile_phase(phase)
        self._span = span("compile", phase)
        self._span.__enter__()
        self._bar.say(f"{self._name}: {phase}")
        if phase == "packaging":
            self._bar.advance_to(_ENDS["C++ compilation"])

    def _leave(self) -> None:
        self._span.__exit__(None, None, None)
        now = time.perf_counter()
        if self._phase:
            self.seconds[self._phase] = self.seconds.get(self._phase, 0.0) + now - self._entered_s
        self._entered_s = now

    def build_helpers(self, names: set[str]) -> None:
        """Build the native helpers among `names` that are missing, and load all."""
        if missing_natives(names):
            self.enter("native helpers")
            start = self._base
            self._base = self._entry_end = float(_HELPERS_END)

            def tell(done: int, total: int) -> None:
                self._bar.say(f"{self._name}: native helpers {done}/{total}")
                self._bar.advance_to(start + (_HELPERS_END - start) * done / total)

            prepare_natives(names, tell)
            self.enter("capture")
        else:
            prepare_natives(names)

    def start_entry(self, name: str, share: float) -> None:
        """Begin the build of one entry point, `share` of all of them."""
        self._entry_start = self._entry_end
        self._entry_end += share * (_ENDS["C++ compilation"] - self._base)
        self._bar.advance_to(self._entry_start)
        self.enter("code generation")

    @contextlib.contextmanager
    def watch_compiler(self) -> Iterator[None]:
        """Advance with every command that Inductor gives to the C++ compiler."""
        done, thread = 0, threading.get_ident()

        def watched(build: Callable[[], Any]) -> Any:
            nonlocal done
            if threading.get_ident() != thread:
                return build()  # beside another one, which is counted
            if self._phase != "C++ compilation":
                self.enter("C++ compilation")
                self._bar.advance_to(self._entry_at(_ENDS["code generation"]))
            result = build()
            done = min(done + 1, _TYPICAL_COMMANDS)
            width = _ENDS["C++ compilation"] - _ENDS["code generation"]
            self._bar.advance_to(
                self._entry_at(_ENDS["code generation"] + width * done / _TYPICAL_COMMANDS)
            )
            return result

        with around_builds(watched):
            yield

    def _entry_at(self, percent: float) -> float:
        """Return where the bar is when so much of a build with one entry would be done."""
        before, end = _ENDS["capture"], _ENDS["C++ compilation"]
        share = (percent - before) / (end - before)
        return self._entry_start + share * (self._entry_end - self._entry_start)


def build_helpers(names: set[str], *, show: bool) -> None:
    """Build missing native helpers under a bar of their own, and load all.

    For programs that need no other build: from a cache, from a file, or in plain eager PyTorch.
    """
    missing = missing_natives(names)
    if not missing:
        prepare_natives(names)
        return
    compile_phase("native helpers")
    bar = ClockBar(len(missing), "Building native helpers", show=show)

    def tell(done: int, total: int) -> None:
        bar.say(f"{done}/{total}, kept for the next start")
        bar.advance_to(done)

    try:
        with span("compile", "native helpers"):
            prepare_natives(names, tell)
    finally:
        bar.close()
