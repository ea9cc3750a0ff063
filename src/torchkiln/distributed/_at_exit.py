"""What a process does when it leaves the run; its forked children do not."""

from __future__ import annotations

import atexit
import os
from collections.abc import Callable


def at_exit(work: Callable[[], None]) -> None:
    """Call `work` when this process ends by itself; what was registered last comes first."""
    owner = os.getpid()

    def leave() -> None:
        if os.getpid() == owner:
            work()

    atexit.register(leave)
