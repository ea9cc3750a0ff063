"""Run an operation again and again, each time with another of its system calls failing.

Runs in a process that was started with the shim (`_shim.c`) in LD_PRELOAD.
"""

from __future__ import annotations

import abc
import contextlib
import ctypes
import errno
import functools
import gc
import os
import shutil
import signal
import tempfile
import traceback
import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torchkiln.core import TorchkilnError, _temporary

_, CREATE, WRITE, SYNC, _, _, MKDIR, _, TRUNCATE, READ = (1 << i for i in range(10))
KINDS = ("open", "create", "write", "sync", "rename", "unlink", "mkdir", "map", "truncate", "read")
_EVERYTHING = (1 << 10) - 1
_KILL = -1


@dataclass(frozen=True)
class Mode:
    """Which calls fail, how, and whether all later ones fail too."""

    kinds: int
    error: int
    lasts: bool = False


MODES = {
    # What is there can be read and removed, nothing new fits; half of a write may.
    "full disk": Mode(CREATE | WRITE | SYNC | MKDIR | TRUNCATE, errno.ENOSPC, lasts=True),
    "no space once": Mode(_EVERYTHING & ~READ, errno.ENOSPC),
    "one error": Mode(_EVERYTHING, errno.EIO),
    "dead disk": Mode(_EVERYTHING, errno.EIO, lasts=True),
    "interrupt": Mode(_EVERYTHING, errno.EINTR),
    "kill": Mode(_EVERYTHING & ~READ, _KILL),
}
BYSTANDER = "notes of the user.txt"


class Scenario(abc.ABC):
    """An operation, what was there before, and how to read what is there after."""

    # Whether what was there may be gone (never: be wrong) after a fault, as in a cache.
    may_lose = False
    # Whether the next start makes anew what was lost.
    refills = True
    # Whether files are replaced one by one, so that some may be old and some new.
    by_file = False
    # Whether the operation answers in spite of faults, with a warning at most.
    never_fails = False
    # Whether the operation leaves another state than it found.
    writes = True
    # What it may raise.
    errors: tuple[type[Exception], ...] = (TorchkilnError,)
    # At most so many calls fail, spread evenly: for copies in hundreds of equal chunks.
    most_faults = 10_000

    # A folder that `_native_program.build` filled, for those that need native code.
    native: Path

    def prepare(self, folder: Path) -> None:  # noqa: B027 - most have more to do than some
        """Make the old state."""

    def before(self, folder: Path) -> None:  # noqa: B027
        """Get ready for `operate`, without faults."""

    @abc.abstractmethod
    def operate(self, folder: Path) -> Any:
        """Do what faults are injected into; return what it gave, as plain values."""

    @abc.abstractmethod
    def state(self, folder: Path) -> Any:
        """Return what is there, read as a user would, as plain values."""

    def right_results(self, usual: Any) -> list[Any]:
        """Return what `operate` may give."""
        return [usual]

    def check_usual(self, folder: Path) -> None:  # noqa: B027
        """Check what an operation without faults has done besides."""

    def listing(self, folder: Path) -> list[str]:
        return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


@dataclass
class Report:
    """What became of the faults of a scenario and mode: calls by kind, those that failed, harm."""

    calls: dict[str, int] = field(default_factory=dict)
    injected: Counter[str] = field(default_factory=Counter)
    harm: list[str] = field(default_factory=list)


@functools.cache
def _shim() -> ctypes.CDLL:
    library = ctypes.CDLL(os.environ["LD_PRELOAD"])
    library.fault_watch.argtypes = [ctypes.c_char_p]
    library.fault_made.restype = ctypes.c_char_p
    return library


def _failed_kind() -> str:
    bit = _shim().fault_kind()
    return KINDS[bit.bit_length() - 1] if bit else "none"


@contextlib.contextmanager
def _armed(mode: Mode, number: int) -> Iterator[None]:
    _shim().fault_arm(mode.kinds, number, mode.error, mode.lasts)
    try:
        yield
    finally:
        _shim().fault_disarm()


class Runner:
    """One scenario under one mode."""

    def __init__(self, scenario: Scenario, mode: str, root: Path) -> None:
        self._scenario, self._mode = scenario, MODES[mode]
        self._template, self._work, self._temporary = (
            root / name for name in ("template", "work", "tmp")
        )
        self._work.mkdir(parents=True)
        self._temporary.mkdir()
        tempfile.tempdir = str(self._temporary)
        (self._work / BYSTANDER).write_text("mine")
        scenario.prepare(self._work)
        shutil.copytree(self._work, self._template, symlinks=True)
        _shim().fault_watch(None)
        for folder in (self._work, self._temporary):
            _shim().fault_watch(os.fsencode(os.path.realpath(folder)))

    def run(self, limit: int) -> Report:
        """Fail at most `limit` calls, evenly spread over all."""
        report = Report()
        self._reset()
        self._old = self._scenario.state(self._work)
        self._reset()  # looking counts as a start
        self._usual = self._operate(0)
        total = _shim().fault_count()
        report.calls = {kind: _shim().fault_calls(bit) for bit, kind in enumerate(KINDS)}
        assert sum(report.calls.values()) == total
        self._scenario.check_usual(self._work)
        self._new = self._scenario.state(self._work)
        assert (self._new != self._old) == self._scenario.writes, "a test of nothing"
        self._names = self._listing()
        chosen = min(total, limit, self._scenario.most_faults)
        numbers = sorted({1 + index * total // chosen for index in range(chosen)}) if total else []
        for number in [*numbers, total + 1]:
            try:
                self._reset()
                self._fail(number, fires=number <= total)
            except Exception:
                report.harm.append(f"call {number} of {total}: {traceback.format_exc(limit=-4)}")
                if len(report.harm) >= 5:
                    break
            if number <= total:
                report.injected[_failed_kind()] += 1
        return report

    def _reset(self) -> None:
        for folder in (self._work, self._temporary):
            shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(self._template, self._work, symlinks=True)
        self._temporary.mkdir()
        self._start_anew()
        self._scenario.before(self._work)

    def _start_anew(self) -> None:
        _temporary._cleaned.clear()

    def _listing(self) -> list[str]:
        left = [path for path in self._temporary.rglob("*") if path.is_file()]
        return [*self._scenario.listing(self._work), *map(str, left)]

    def _operate(self, number: int) -> Any:
        with warnings.catch_warnings(record=True):
            warnings.simplefilter("always")
            with _armed(self._mode, number):
                return self._scenario.operate(self._work)

    def _fail(self, number: int, *, fires: bool) -> None:
        if self._mode.error == _KILL:
            self._kill(number, fires=fires)
            finished = not fires
        else:
            finished = self._raise(number)
            assert bool(_shim().fault_fired()) == fires, "the number of calls changed"
        self._check_state(finished=finished and not self._scenario.may_lose)
        # The next start.
        self._start_anew()
        with warnings.catch_warnings(record=True):
            warnings.simplefilter("always")
            self._scenario.before(self._work)
            given = self._scenario.operate(self._work)
        assert given in self._scenario.right_results(self._usual), f"the next start gave {given}"
        self._check_state(finished=self._scenario.refills)
        names = self._listing()
        usual = self._names if self._scenario.refills else [n for n in self._names if n in names]
        assert names == usual, f"left behind {names}, usually there are {usual}"
        # Of the fault, not of the next start, which is not armed.
        made = os.fsdecode(_shim().fault_made())
        try:
            assert not made or not os.path.exists(made), f"{made} is left behind"
        finally:
            if made:
                shutil.rmtree(made, ignore_errors=True)

    def _raise(self, number: int) -> bool:
        """Run with an error; tell whether the operation came to its end."""
        try:
            given = self._operate(number)
        except self._scenario.errors as error:
            told, raised = str(error), True
        else:
            raised = False
        finally:
            gc.collect()
            held = _descriptors_below(self._work) | _descriptors_below(self._temporary)
            assert not held, f"left open: {held}"
        if raised:
            assert not self._scenario.never_fails, f"failed: {told}"
            named = (str(self._work), str(self._temporary))
            assert any(name in told for name in named), f"no file is named: {told}"
            return False
        right = self._scenario.right_results(self._usual)
        assert given in right, f"gave {given} instead of {right}"
        return True

    def _kill(self, number: int, *, fires: bool) -> None:
        child = os.fork()
        if child == 0:
            with contextlib.suppress(BaseException):
                self._operate(number)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        ending = signal.SIGKILL if fires else 0
        assert status == ending, f"ended with status {status}, not {ending}"

    def _check_state(self, *, finished: bool) -> None:
        with warnings.catch_warnings(record=True):
            warnings.simplefilter("always")
            state = self._scenario.state(self._work)
        assert (self._work / BYSTANDER).read_text() == "mine"
        if finished:
            assert state == self._new, f"not the new state: {state}"
        elif self._scenario.by_file or self._scenario.may_lose:
            for name in {*self._old, *self._new}:
                allowed = [self._old.get(name), self._new.get(name)]
                if self._scenario.may_lose:
                    allowed.append(None)
                assert state.get(name) in allowed, f"{name} is neither old nor new: {state}"
        else:
            assert state in (self._old, self._new), f"neither old nor new: {state}"


def _descriptors_below(folder: Path) -> set[str]:
    found = set()
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            target = os.readlink(f"/proc/self/fd/{name}")
            if target.startswith(f"{os.path.realpath(folder)}/"):
                found.add(target)
    return found
