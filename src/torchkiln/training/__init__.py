"""Training on one loop: checkpoints, exact resume, interrupts, averaged weights, a report.

Names below are imported when first used: exit codes need no torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchkiln.core._lazy_names import lazy_names

if TYPE_CHECKING:
    from torchkiln.report import EpochRecord as EpochRecord
    from torchkiln.report import QuietMonitor as QuietMonitor
    from torchkiln.report import RunMonitor as RunMonitor
    from torchkiln.report import RunResult as RunResult
    from torchkiln.report import StepRecord as StepRecord
    from torchkiln.training._averaging import WeightAverage as WeightAverage
    from torchkiln.training._exit_codes import ExitCode as ExitCode
    from torchkiln.training._exit_codes import exit_code as exit_code
    from torchkiln.training._schedule import warmup_cosine as warmup_cosine
    from torchkiln.training._trainer import Trainer as Trainer

_PLACES = {
    "EpochRecord": "torchkiln.report",
    "ExitCode": "torchkiln.training._exit_codes",
    "QuietMonitor": "torchkiln.report",
    "RunMonitor": "torchkiln.report",
    "RunResult": "torchkiln.report",
    "StepRecord": "torchkiln.report",
    "Trainer": "torchkiln.training._trainer",
    "WeightAverage": "torchkiln.training._averaging",
    "exit_code": "torchkiln.training._exit_codes",
    "warmup_cosine": "torchkiln.training._schedule",
}
__all__ = list(_PLACES)
__getattr__ = lazy_names(__name__, _PLACES)
