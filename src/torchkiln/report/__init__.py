"""What a training run shows: its progress while it runs, then a table, plots and a page."""

from torchkiln.report._monitor import MonitorGroup, QuietMonitor, RunMonitor
from torchkiln.report._monitors import make_monitor
from torchkiln.report._record import (
    EpochRecord,
    PredictedMolecule,
    RunResult,
    StepRecord,
    ValidationResult,
)
from torchkiln.report._results_file import load_result, to_record
from torchkiln.report._summary import print_record, print_summary
from torchkiln.report._write import publish, write_report

__all__ = [
    # what happened
    "EpochRecord",
    "PredictedMolecule",
    "RunResult",
    "StepRecord",
    "ValidationResult",
    # while it runs
    "MonitorGroup",
    "QuietMonitor",
    "RunMonitor",
    "make_monitor",
    # afterwards
    "load_result",
    "print_record",
    "print_summary",
    "publish",
    "to_record",
    "write_report",
]
