"""How fast a run is at the moment, for whoever records it."""

from __future__ import annotations

import time
from typing import final

from torchkiln.core import counter, is_traced

# A few values a second are as many as an eye can tell apart.
_LEAST_S = 0.25


@final
class RateCounter:
    """Tells how many samples a second are trained on, averaged over the time since it last told.

    Args:
        counted: What a sample is, in the plural.
    """

    def __init__(self, counted: str) -> None:
        self._name = f"{counted}/s"
        self._samples = 0
        self._since_s: float | None = None

    def begin(self) -> None:
        """Count from now on: an epoch begins."""
        self._samples, self._since_s = 0, time.perf_counter()

    def take(self, samples: int) -> None:
        """Take note of a step that is done."""
        if not is_traced():
            self._since_s = None
            return
        now = time.perf_counter()
        if self._since_s is None:  # somebody listens since this step
            self._samples, self._since_s = 0, now
            return
        self._samples += samples
        if now - self._since_s >= _LEAST_S:
            self._tell(now)

    def end(self) -> None:
        """Tell what was not told yet: an epoch ends."""
        if self._samples and self._since_s is not None:
            self._tell(time.perf_counter())

    def _tell(self, now: float) -> None:
        assert self._since_s is not None
        counter("training", self._name, self._samples / (now - self._since_s))
        self._samples, self._since_s = 0, now
