"""Telling a person, once, that other processes take the cores that a run computes on."""

from __future__ import annotations

import os
import time
from typing import final

from torchkiln.core._other_processes import Reading

_VARIABLE = "TORCHKILN_IGNORE_LOAD"
# A look takes milliseconds. It tells nothing of a shorter time than the first, and later ones are
# rarer and rarer.
_FIRST_LOOK_S = 1.0
_SECOND_LOOK_S = 30.0
_LONGEST_PAUSE_S = 600.0


@final
class CoreWatch:
    """Compares what the cores did with what this process did, now and then, until it has told.

    `TORCHKILN_IGNORE_LOAD=1` keeps it quiet.

    Args:
        is_alone: Whether the run has one process. If it has several, it is quiet, since the others
            would count as strangers.
    """

    def __init__(self, *, is_alone: bool = True) -> None:
        is_off = not is_alone or os.environ.get(_VARIABLE, "0") not in ("", "0")
        self._before: Reading | None = None if is_off else Reading()
        self._pause_s = _SECOND_LOOK_S
        self._next_s = time.monotonic() + _FIRST_LOOK_S

    def look(self) -> str | None:
        """Return what to tell the person; None: nothing, or it is not yet time to look again."""
        now = time.monotonic()
        if self._before is None or now < self._next_s:
            return None
        reading = Reading()
        load = reading.load_since(self._before)
        self._before = reading
        self._next_s, self._pause_s = now + self._pause_s, min(2 * self._pause_s, _LONGEST_PAUSE_S)
        if load is None or not load.is_high:
            return None
        self._before = None  # told once
        return (
            f"{load}: this run is slower than it could be, and its times say little; end them, or "
            "train when they are done (`torchkiln doctor` looks again)"
        )
