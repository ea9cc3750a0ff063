"""An application as one of several processes: it joins them, and leaves talking to rank 0.

No torch up here.
"""

from __future__ import annotations

import contextlib
import shlex
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar, final

from torchkiln.core._launch import launched
from torchkiln.core._plain_warnings import logging_at
from torchkiln.core._progress import quietly
from torchkiln.distributed import current, start

if TYPE_CHECKING:
    from torchkiln.training._ranks import Ranks

T = TypeVar("T")


def is_one_of_several() -> bool:
    """Whether this process was started together with others, or has joined some already."""
    known = current() or launched()
    return known is not None and known.size > 1


@final
@dataclass(frozen=True, slots=True)
class Attempt(Generic[T]):
    """What came of some work, to be asked for later; there is a value, or an error.

    Settings are read before torch is loaded, and processes can only join afterwards: until then,
    none of them knows whether the others have the same error.
    """

    value: T | None = None
    error: Exception | None = None

    @classmethod
    def at(cls, work: Callable[[], T]) -> Attempt[T]:
        """Work; in a process alone, errors are raised at once."""
        if not is_one_of_several():
            return cls(work())
        try:
            return cls(work())
        except Exception as error:
            return cls(error=error)

    def get(self) -> T:
        """Return the value, or raise the error."""
        if self.error is not None:
            raise self.error
        assert self.value is not None
        return self.value


def launch_command(command: str) -> str:
    """Return the beginning of a command line that starts the same program in as many processes.

    Args:
        command: Starts it in one.
    """
    launch = launched()
    if launch is None or launch.size == 1:
        return command
    if launch.launcher != "torchrun":
        return f"the same launcher and {command}"
    where = f"--standalone --nproc-per-node {launch.size}" if launch.is_on_one_host else "..."
    script = sys.argv[0]
    program = shlex.quote(script) if script.endswith(".py") else f"--no-python {command}"
    return f"torchrun {where} {program}"


def join() -> Ranks:
    """Join the other processes, if a launcher started some; torch must be set up by then.

    Raises:
        DistributedError: They do not come.
    """
    from torchkiln.training._ranks import Ranks

    return Ranks(start()) if is_one_of_several() else Ranks()


@contextlib.contextmanager
def spoken_for(ranks: Ranks) -> Iterator[None]:
    """Say nothing meanwhile but errors, unless this process speaks for all."""
    if ranks.is_first:
        yield
        return
    with quietly(), logging_at("error"):
        yield
