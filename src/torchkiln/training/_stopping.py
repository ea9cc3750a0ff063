"""`Stopping`: whether a run ends early, because of a signal to any of its processes."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import TypeVar, final

from torchkiln.training._interrupt import Interrupted, InterruptGuard
from torchkiln.training._ranks import Ranks

T = TypeVar("T")
# To be called between two pieces of work; raises if a person wants to stop.
Check = Callable[[], None]


@final
class Stopping:
    """What a signal to one process means for all of its run: they leave at the same place.

    A launcher hands Ctrl-C and SIGTERM to all of them, at slightly different moments; and if one
    process dies, it sends SIGTERM to the others. So a process never leaves on its own account:
    either all agree, which they can only do while all live, or it is an error.

    Args:
        ranks: The processes of the run.
    """

    def __init__(self, ranks: Ranks) -> None:
        self._ranks = ranks
        self.guard = InterruptGuard(speaks=ranks.is_first)

    @property
    def is_wanted(self) -> bool:
        """Whether a signal came to this process."""
        return self.guard.requested

    def check_after_step(self, is_wanted_by_any: bool) -> None:
        """Raise `Interrupted` after a step in which all processes told each other what they want.

        Args:
            is_wanted_by_any: What they told; without others, it does not matter.
        """
        if self._ranks.size == 1:
            self.guard.check()
        elif is_wanted_by_any:
            raise Interrupted

    def excusing(self) -> contextlib.AbstractContextManager[None]:
        """Take errors after a signal for its effects, if there is nobody to agree with."""
        return self.guard.excusing() if self._ranks.size == 1 else contextlib.nullcontext()

    def share(self, what: str, work: Callable[[Check], T]) -> list[T]:
        """Let every process do its part of work that changes nothing; return all parts, by rank.

        A process that gets a signal gives up its part at once. The others may come to the end of
        theirs: only then do all know whether the work is done.

        Args:
            what: The work.
            work: Does this process' part; calls what it is given now and then.

        Raises:
            Interrupted: One of the processes gave up.
        """
        if self._ranks.size == 1:
            with self.guard.excusing():
                return [work(self.guard.check)]
        part: list[T] = []  # stays empty if it is given up
        with contextlib.suppress(Interrupted), self.guard.excusing():
            part.append(work(self.guard.check))
        self._ranks.meet(what)
        parts = self._ranks.gather(part)
        if not all(parts):
            raise Interrupted
        return [one for (one,) in parts]
