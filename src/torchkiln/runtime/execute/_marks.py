"""The clock reads of loaded native code (`compile/_marks.py`): switched on, off, and read."""

from __future__ import annotations

import _ctypes
import contextlib
import ctypes
import os
import weakref
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from torchkiln.core import ExecutableError

# What a library shows, as `compile/_marks.py` writes it into the code.
SWITCH = "torchkiln_marks_on"
TIMES = "torchkiln_marks"
COUNT = "torchkiln_marks_count"
PLAN = "torchkiln_plan"


class Marks:
    """What one entry point tells of its calls, and when it made them.

    Args:
        library: The shared library, which must be loaded already.

    Raises:
        ExecutableError: The library was made without clock reads.
    """

    def __init__(self, library: Path) -> None:
        # Finds what torch has loaded from this path; nothing is loaded twice.
        loaded = ctypes.CDLL(str(library), mode=os.RTLD_NOW | os.RTLD_NOLOAD)
        # It stays loaded as long as this object, not for ever.
        weakref.finalize(self, _ctypes.dlclose, loaded._handle)
        try:
            count = ctypes.c_int64.in_dll(loaded, COUNT).value
            self._switch = ctypes.c_int32.in_dll(loaded, SWITCH)
            times = (ctypes.c_int64 * count).in_dll(loaded, TIMES)
            self._plan = ctypes.c_char.in_dll(loaded, PLAN)
        except ValueError as error:
            raise ExecutableError(
                f"this executable has no clock reads ({error}); it was made by another version of "
                "Torchkiln: compile it again"
            ) from error
        self._times: np.ndarray = np.ctypeslib.as_array(times)
        self._library = loaded

    @property
    def plan_text(self) -> str:
        """The plan of the calls, as `Plan.from_json` reads it."""
        return ctypes.string_at(ctypes.addressof(self._plan)).decode()

    @contextlib.contextmanager
    def on(self) -> Iterator[None]:
        """Read the clock behind each call that is made meanwhile."""
        self._switch.value = 1
        try:
            yield
        finally:
            self._switch.value = 0

    def take(self) -> np.ndarray:
        """Return the nanoseconds that the calls of the latest run took, in order, and forget them.

        A call that was left out took none. Element 0 is when the run began, on the clock of
        `time.monotonic_ns`; the others are durations.
        """
        times = self._times.copy()
        self._times[:] = 0
        reached = np.maximum.accumulate(times)
        return np.concatenate([times[:1], np.diff(reached)])


def find_libraries(folder: Path, entries: list[str]) -> dict[str, Path]:
    """Return the shared library of each entry among the files that torch unpacked."""

    def fail(error: OSError) -> None:
        raise ExecutableError(f"cannot read what a program was unpacked to: {error}") from error

    found = {}
    # Not `rglob`, which leaves a folder open if reading it fails.
    for parent, _, files in os.walk(folder, onerror=fail):
        name = Path(parent).name
        for file in files:
            if name in entries and file.endswith(".so"):
                found[name] = Path(parent, file)
    return found
