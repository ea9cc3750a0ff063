"""A progress bar whose clock moves while somebody else works, and that only a person sees."""

from __future__ import annotations

import threading
from typing import final

from torchkiln.core._progress import progress_bar

_TICK_S = 0.5


@final
class ClockBar:
    """A bar that is drawn anew twice a second, so that its clock shows that work goes on.

    Args:
        total: Where it ends.
        title: What stands before it.
        show: Whether it is drawn, if somebody watches.
    """

    def __init__(self, total: int, title: str, *, show: bool) -> None:
        self._bar = progress_bar(
            total=total,
            desc=title,
            show=show,
            dynamic_ncols=True,
            postfix=[""],  # a list: tqdm puts a comma before a text
            bar_format="{desc}: {percentage:3.0f}%|{bar}| {elapsed} {postfix[0]}",
        )
        self._closed = threading.Event()
        self._clock: threading.Thread | None = None
        if not self._bar.disable:
            self._clock = threading.Thread(target=self._tick, name="compile-clock", daemon=True)
            self._clock.start()

    @property
    def place(self) -> int:
        """How far the bar is."""
        return int(self._bar.n)

    def say(self, text: str) -> None:
        """Show what is going on, behind the bar."""
        self._bar.postfix = [text]  # type: ignore[assignment]  # the stubs know strings only
        self._bar.refresh()

    def advance_to(self, place: float) -> None:
        """Move forward; never back."""
        self._bar.update(max(0, int(place) - self.place))

    def close(self) -> None:
        """Leave the bar as it is."""
        self._closed.set()
        if self._clock is not None:
            self._clock.join()
        self._bar.close()

    def _tick(self) -> None:
        while not self._closed.wait(_TICK_S):
            self._bar.refresh()
