"""Values that forward's Python code takes from outside, and that a program therefore keeps.

Python runs once, when a program is recorded. What it draws from Python's or NumPy's random numbers,
reads from a clock or from a file is then the same in every call, which the user should know.
"""

from __future__ import annotations

import builtins
import contextlib
import datetime
import functools
import io
import pickle
import random
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType, ModuleType
from typing import Any
from unittest import mock

import numpy as np
from torch import nn

from torchkiln.core import warn_user
from torchkiln.core._own_code import OWN_FOLDERS
from torchkiln.core._tracebacks import is_users
from torchkiln.ops._host import HOST_CALLS_FILE

_CLOCKS = (
    *("time", "time_ns", "perf_counter", "perf_counter_ns", "monotonic", "monotonic_ns"),
    *("process_time", "process_time_ns", "localtime", "gmtime", "ctime", "strftime"),
)
_DATES = ("now", "utcnow", "today")


class _Watcher:
    """Notes what forward of `module` takes from outside while the module is recorded."""

    def __init__(self, module: nn.Module) -> None:
        self._found: dict[str, None] = {}
        self._thread = threading.get_ident()
        self._modules = _users_modules(module)
        self._generators = _generators(module, self._modules)

    def warn(self) -> None:
        if self._found:
            warn_user(
                "forward's Python code runs once, when the program is recorded, so these values "
                f"are compiled in and the same in every call: {', '.join(self._found)}. Draw "
                "random numbers with torch, and pass what changes as arguments; destroy() the "
                "program to record it again"
            )

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        before = {name: _state(generator) for name, generator in self._generators.items()}
        with contextlib.ExitStack() as stack:
            self._watch_files(stack)
            self._watch_clocks(stack)
            self._watch_dates(stack)
            yield
        for name, generator in self._generators.items():
            if _state(generator) != before[name]:
                self._found[f"random numbers of {name}"] = None

    def _watch_files(self, stack: contextlib.ExitStack) -> None:
        original = builtins.open

        @functools.wraps(original)
        def watched(file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
            if "r" in mode or "+" in mode:
                self._note(f"the content of {file!r}", sys._getframe(1))
            return original(file, mode, *args, **kwargs)

        for home in (builtins, io):
            stack.enter_context(mock.patch.object(home, "open", watched))

    def _watch_clocks(self, stack: contextlib.ExitStack) -> None:
        watched = {name: self._watched_clock(name) for name in _CLOCKS}
        # Whoever wrote `from time import ...` has them by themselves.
        by_id = {id(getattr(time, name)): watched[name] for name in _CLOCKS}
        for module in self._modules:
            for name, value in list(vars(module).items()):
                if id(value) in by_id:
                    stack.enter_context(mock.patch.object(module, name, by_id[id(value)]))
        for name in _CLOCKS:
            stack.enter_context(mock.patch.object(time, name, watched[name]))

    def _watched_clock(self, name: str) -> Callable[..., Any]:
        original = getattr(time, name)

        @functools.wraps(original)
        def watched(*args: Any) -> Any:
            self._note(f"time.{name}()", sys._getframe(1))
            return original(*args)

        return watched

    def _watch_dates(self, stack: contextlib.ExitStack) -> None:
        """Look at calls of C code: a class of C cannot be given another method.

        That slows Python down, so only where the user's code has dates at all.
        """
        dates = {id(datetime), id(datetime.datetime), id(datetime.date)}
        uses_dates = any(id(v) in dates for m in self._modules for v in list(vars(m).values()))
        if not uses_dates or sys.getprofile() is not None:
            return

        def profile(frame: FrameType, event: str, called: Any) -> None:
            if event != "c_call" or called.__name__ not in _DATES:
                return
            owner = getattr(called, "__self__", None)
            if isinstance(owner, type) and issubclass(owner, datetime.date):
                self._note(f"{owner.__name__}.{called.__name__}()", frame)

        sys.setprofile(profile)
        stack.callback(sys.setprofile, None)

    def _note(self, what: str, frame: FrameType) -> None:
        if threading.get_ident() == self._thread:
            place = _place_in_forward(frame)
            if place is not None:
                self._found[f"{what} ({place})"] = None


@contextlib.contextmanager
def baked_values_told(module: nn.Module) -> Iterator[None]:
    """Warn, after `module` was recorded, of what its forward took from outside."""
    watcher = _Watcher(module)
    with watcher.watching():
        yield
    watcher.warn()


def _place_in_forward(frame: FrameType | None) -> str | None:
    """Return the user's line that something is called for; None: forward's code did not ask for it.

    Libraries in between may do it for the user (`numpy.load`); our own code and torch do it for
    themselves.
    """
    while frame is not None and not is_users(frame):
        name = frame.f_code.co_filename
        if name.startswith(OWN_FOLDERS) or _is_of_torch(frame.f_globals):
            return None
        frame = frame.f_back
    if frame is None:
        return None
    place = f"{frame.f_code.co_filename}:{frame.f_lineno}"
    while frame is not None:
        if frame.f_code.co_filename == HOST_CALLS_FILE:
            return None  # a function that programs call on the host runs in every call
        frame = frame.f_back
    return place


def _is_of_torch(names: dict[str, Any]) -> bool:
    return str(names.get("__name__")).partition(".")[0] == "torch"


def _users_modules(module: nn.Module) -> list[ModuleType]:
    """Return the Python modules in which the user wrote the classes of `module` and its parts."""
    names = {kind.__module__ for child in module.modules() for kind in type(child).__mro__}
    found = [sys.modules[name] for name in sorted(names) if name in sys.modules]
    return [one for one in found if _is_users_module(one)]


def _is_users_module(module: ModuleType) -> bool:
    name = module.__name__.partition(".")[0]
    file = getattr(module, "__file__", None)
    if name in ("torch", "builtins") or name in sys.stdlib_module_names - {"__main__"}:
        return False
    return file is None or ("site-packages" not in file and not file.startswith(OWN_FOLDERS))


def _generators(module: nn.Module, modules: list[ModuleType]) -> dict[str, Any]:
    """Return the random generators that forward can reach easily, by their names for people."""
    found: dict[str, Any] = {"the module random": random, "numpy.random": np.random}
    kinds = (random.Random, np.random.Generator, np.random.RandomState)
    holders: list[tuple[str, Any]] = [(one.__name__, one) for one in modules]
    holders += module.named_modules()
    for path, holder in holders:
        for name, value in list(vars(holder).items()):
            # By its type alone: to ask a lazily loaded object for its class would load it.
            if issubclass(type(value), kinds) and not issubclass(type(value), random.SystemRandom):
                found[f"{path}.{name}" if path else name] = value
    return found


def _state(generator: Any) -> bytes:
    if isinstance(generator, np.random.Generator):
        return pickle.dumps(generator.bit_generator.state)
    getter = getattr(generator, "getstate", None) or generator.get_state
    return pickle.dumps(getter())
