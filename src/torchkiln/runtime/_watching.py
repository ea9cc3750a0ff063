"""`CallWatcher`: somebody who makes the calls of a program and sees what happens in them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol


class CallWatcher(Protocol):
    """Wants to see every call of a program."""

    def call(self, program: Any, run: Callable[[], Any]) -> Any:
        """Run a call of a `Program`, and return what it returns."""

    def forget_the_loop(self) -> None:
        """Take what lies before the next call for nothing that belongs to the user's loop."""

    def finish(self) -> None:
        """Take note that no further call comes."""
