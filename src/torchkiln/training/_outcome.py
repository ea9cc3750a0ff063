"""`Outcome`: how a run ended, and everything that is known about it then."""

from __future__ import annotations

from dataclasses import dataclass

from torchkiln.core import TorchkilnError
from torchkiln.report import EpochRecord
from torchkiln.report._record import Status, WorldRecord
from torchkiln.training._history import History


@dataclass(frozen=True, slots=True, eq=False)
class Outcome:
    """How a run ended.

    Args:
        status: "finished", "interrupted" or "failed".
        note: Why it failed, or how to go on after an interrupt.
        history: All that it saw, the epoch that is not done included.
        epochs: In order; the last one may be incomplete.
        compile_seconds: Before the first step; None if nothing was compiled.
        error: What it failed with.
        world: What each of several processes did; None if there is one.
    """

    status: Status
    note: str
    history: History
    epochs: list[EpochRecord]
    compile_seconds: float | None
    error: TorchkilnError | None = None
    world: WorldRecord | None = None
