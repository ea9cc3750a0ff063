"""The "Graph compilation" bar: moved by what really happens, not by a clock."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any, Self

from torchkiln.core import span
from torchkiln.core._progress import progress_bar
from torchkiln.torch_internals._inductor_patches import around_builds

# Where each phase ends, in percent: shares of a typical build.
_ENDS = {"capture": 10, "code generation": 40, "C++ compilation": 95, "packaging": 100}
# An AOTInductor build runs about this many compiler commands.
_TYPICAL_COMMANDS = 4


class CompileProgress:
    """A tqdm bar of 100 steps that follows the phases of a build."""

    def __init__(self, show: bool) -> None:
        self._bar = progress_bar(
            total=100,
            desc="Graph compilation",
            show=show,
            bar_format="{desc}: {percentage:3.0f}%|{bar}| {n_fmt}/{total} [{elapsed}<{remaining}]",
        )
        self._phase = "capture"
        self._span: contextlib.AbstractContextManager[None] = contextlib.nullcontext()
        self._entry_start, self._entry_share = 10.0, 1.0
        self._next_start = 10.0

    def __enter__(self) -> Self:
        self.enter("capture")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._span.__exit__(None, None, None)
        if kind is None:
            self._advance_to(100)
        self._bar.close()

    def enter(self, phase: str) -> None:
        """Begin a phase; the one before is done."""
        self._span.__exit__(None, None, None)
        self._phase = phase
        self._span = span("compile", phase)
        self._span.__enter__()
        if phase == "packaging":
            self._advance_to(_ENDS["C++ compilation"])

    def start_entry(self, name: str, share: float) -> None:
        """Begin the build of one entry point, `share` of all of them."""
        self._entry_start, self._entry_share = self._next_start, share
        self._next_start += share * (_ENDS["C++ compilation"] - _ENDS["capture"])
        self._advance_to(self._entry_start)
        self.enter("code generation")

    @contextlib.contextmanager
    def watch_compiler(self) -> Iterator[None]:
        """Advance with every command that Inductor gives to the C++ compiler."""
        done = 0

        def watched(build: Callable[[], Any]) -> Any:
            nonlocal done
            if self._phase != "C++ compilation":
                self.enter("C++ compilation")
                self._advance_to(self._entry_at(_ENDS["code generation"]))
            result = build()
            done = min(done + 1, _TYPICAL_COMMANDS)
            width = _ENDS["C++ compilation"] - _ENDS["code generation"]
            self._advance_to(
                self._entry_at(_ENDS["code generation"] + width * done / _TYPICAL_COMMANDS)
            )
            return result

        with around_builds(watched):
            yield

    def _entry_at(self, percent: float) -> float:
        return self._entry_start + self._entry_share * (percent - _ENDS["capture"])

    def _advance_to(self, percent: float) -> None:
        self._bar.update(max(0, int(percent) - self._bar.n))
