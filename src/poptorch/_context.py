"""What the façade knows while an executor captures or runs forward."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field

from torch.distributions import Distribution

from poptorch._mixed_precision import MixedPrecision


@dataclass(slots=True)
class Run:
    """One call of an executor, seen from inside forward."""

    training: bool
    # (user id, device) of each block in the order in which forward entered them.
    blocks: list[tuple[str, int | None]] = field(default_factory=list)
    num_automatic_ids: int = 0
    inside_multi_conv: bool = False


_runs: list[Run] = []


def current() -> Run | None:
    """Return the innermost run, or None outside any executor."""
    return _runs[-1] if _runs else None


@contextlib.contextmanager
def running(training: bool, *, mixes_precision: bool) -> Iterator[Run]:
    """Let operations know that an executor is at work.

    Distributions do not check their arguments meanwhile: that would read values.

    Args:
        training: Whether a training model runs.
        mixes_precision: Whether forward's Python code may run, and with it layers whose input and
            weights differ in dtype.
    """
    run = Run(training)
    validates = Distribution._validate_args
    Distribution.set_default_validate_args(False)
    _runs.append(run)
    try:
        with MixedPrecision() if mixes_precision else contextlib.nullcontext():
            yield run
    finally:
        _runs.remove(run)
        Distribution.set_default_validate_args(validates)
