"""Errors of ours end a short traceback: the user's own lines, without torch's frames and ours.

An error that is found while a program is recorded comes out of a hundred frames of torch and
Torchkiln. None of them helps the reader: the message says what is wrong, and the lines of the
user's own code say where. `TORCHKILN_FULL_TRACEBACK=1` shows everything.
"""

from __future__ import annotations

import functools
import os
import re
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path
from types import FrameType, TracebackType
from typing import ParamSpec, TypeVar

from torchkiln.core._errors import TorchkilnError
from torchkiln.core._own_code import OWN_FOLDERS

_VARIABLE = "TORCHKILN_FULL_TRACEBACK"
# PyG writes the inner loop of each layer class to a temporary file of its own.
_GENERATED = re.compile(r"_(propagate|edge_updater)_\w+\.py$")
_LIBRARIES = (
    *OWN_FOLDERS,
    *(sysconfig.get_paths()[kind] for kind in ("stdlib", "platstdlib", "purelib", "platlib")),
)
# What files are called that hold no library: a person typed the code.
_TYPED = ("<stdin>", "<string>")

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")


def is_users(frame: FrameType) -> bool:
    """Whether a frame runs the user's own code: neither ours, nor Python's, nor a library's."""
    name = frame.f_code.co_filename
    if name.startswith("<") and not name.startswith("<ipython"):
        # torch makes functions from texts, too; those belong to no module.
        return name in _TYPED and "__name__" in frame.f_globals
    return not name.startswith((*_LIBRARIES, *_torch_folder())) and not _GENERATED.search(name)


def _torch_folder() -> tuple[str, ...]:
    """Return where torch lies, if it is loaded: not always where other libraries do."""
    file = getattr(sys.modules.get("torch"), "__file__", None)
    return (str(Path(file).parent),) if file else ()


def short_tracebacks(
    *others: type[Exception],
) -> Callable[[Callable[_Arguments, _Result]], Callable[_Arguments, _Result]]:
    """Let errors of ours leave a public function with the user's own frames only.

    What an error was made from stays reachable as its `__context__`.

    Args:
        others: Kinds of errors that count as ours beside `TorchkilnError`.
    """
    ours: tuple[type[Exception], ...] = (TorchkilnError, *others)

    def decorate(function: Callable[_Arguments, _Result]) -> Callable[_Arguments, _Result]:
        @functools.wraps(function)
        def call(*args: _Arguments.args, **kwargs: _Arguments.kwargs) -> _Result:
            __tracebackhide__ = True  # IPython and pytest leave this frame out
            try:
                return function(*args, **kwargs)
            except ours as error:
                if os.environ.get(_VARIABLE, "0") not in ("", "0"):
                    raise
                # Frames of the cause are the user's, too: where forward was when torch refused.
                raise error.with_traceback(_users_part(error)) from None

        return call

    return decorate


def _users_part(error: BaseException) -> TracebackType | None:
    """Return a traceback of the user's own frames; those of what it was made from are deeper."""
    chain = [error]
    while (cause := chain[-1].__cause__) is not None and cause not in chain:
        chain.append(cause)
    # Each traceback begins where its error was caught: the last one reaches the deepest frame.
    entries: list[TracebackType] = []
    for link in chain:
        entries += [entry for entry in _entries(link) if is_users(entry.tb_frame)]
    result: TracebackType | None = None
    seen: set[tuple[int, int]] = set()
    for entry in reversed(entries):
        place = (id(entry.tb_frame), entry.tb_lineno)
        if place not in seen:
            seen.add(place)
            result = TracebackType(result, entry.tb_frame, entry.tb_lasti, entry.tb_lineno)
    return result


def _entries(error: BaseException) -> list[TracebackType]:
    entries, entry = [], error.__traceback__
    while entry is not None:
        entries.append(entry)
        entry = entry.tb_next
    return entries
