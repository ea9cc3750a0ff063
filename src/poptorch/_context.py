"""What the façade knows while an executor captures or runs forward."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass, field

from torch.distributions import Distribution

from poptorch._mixed_precision import MixedPrecision
from torchkiln.torch_internals._libraries import checks_arguments


@dataclass(slots=True)
class Run:
    """One call of an executor, seen from inside forward."""

    training: bool
    # (user id, device) of each block in the order in which forward entered them.
    blocks: list[tuple[str, int | None]] = field(default_factory=list)
    num_automatic_ids: int = 0
    inside_multi_conv: bool = False
    # Told of each block: its id and device. None: this process has the whole model.
    begin_block: Callable[[Run, str, int | None], None] | None = None


# Each thread has its own: executors may run side by side.
_current: ContextVar[Run | None] = ContextVar("poptorch_run", default=None)


def current() -> Run | None:
    """Return the innermost run, or None outside any executor."""
    return _current.get()


@contextlib.contextmanager
def running(
    training: bool, begin_block: Callable[[Run, str, int | None], None] | None = None
) -> Iterator[Run]:
    """Let forward behave as in the original while an executor captures or runs it.

    Layers mix half and float operands. Distributions do not check their arguments: that would read
    values.
    """
    run = Run(training, begin_block=begin_block)
    token = _current.set(run)
    validates = checks_arguments(Distribution)
    Distribution.set_default_validate_args(False)
    try:
        with MixedPrecision():
            yield run
    finally:
        Distribution.set_default_validate_args(validates)
        _current.reset(token)
