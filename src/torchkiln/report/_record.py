"""What a training run leaves behind, as plain values: no torch, no drawing, no printing."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

Status = Literal["finished", "interrupted", "failed"]
Array = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class EpochRecord:
    """Figures of one epoch.

    Args:
        epoch: Its number, from 0; a resumed run continues to count.
        loss: Mean over the real molecules, of the transformed target.
        seconds: Training only, validation not included.
        molecules: Real ones that were trained on.
        molecules_per_s: `molecules` over `seconds`.
        learning_rate: At the end of the epoch.
        validation_mae: In the unit of the target, None if the epoch was not validated.
        validation_loss: Of the transformed target, None if the epoch was not validated.
    """

    epoch: int
    loss: float
    seconds: float
    molecules: int
    molecules_per_s: float
    learning_rate: float
    validation_mae: float | None = None
    validation_loss: float | None = None


@dataclass(frozen=True, slots=True, eq=False)
class ValidationResult:
    """Predictions for one split, beside the truth, in physical units.

    Args:
        predicted: [num_molecules]
        true: [num_molecules]
        mae: Mean absolute error.
        rmse: Root of the mean squared error.
        baseline_mae: Error of a linear regression on the number of atoms of each element, fitted to
            the training split; None where there is none.
    """

    predicted: Array
    true: Array
    mae: float
    rmse: float
    baseline_mae: float | None = None

    @classmethod
    def compare(
        cls, predicted: Array, true: Array, *, baseline_mae: float | None = None
    ) -> ValidationResult:
        """Compute the errors of `predicted`."""
        predicted, true = np.asarray(predicted, np.float64), np.asarray(true, np.float64)
        error = predicted - true
        mae = float(np.abs(error).mean()) if len(error) else float("nan")
        rmse = float(np.sqrt((error**2).mean())) if len(error) else float("nan")
        return cls(predicted, true, mae, rmse, baseline_mae)

    @property
    def factor(self) -> float | None:
        """How many times smaller the error is than the baseline's."""
        if self.baseline_mae is None or not self.mae > 0:
            return None
        return self.baseline_mae / self.mae


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class RunResult:
    """Everything about one run that a report shows.

    Args:
        status: How the run ended.
        settings: What was asked for, nested like the config file.
        dataset: `name`, `target`, `unit`, `source`, and `sizes` (molecules by split).
        model: `name`, `parameters` (how many), and whatever else describes it.
        machine: Versions, processor, threads.
        compile_seconds: Before the first step; None if nothing was compiled.
        packing: Share of slots that hold real data, by axis ("nodes", "edges", "graphs").
        epochs: In order; the last one may be incomplete if the run was interrupted.
        steps: (number of the update from the start, loss).
        validation: With the final (averaged) weights.
        test: Likewise.
        note: Why the run failed, or how to go on after an interrupt.
    """

    status: Status
    settings: dict[str, Any] = field(default_factory=dict)
    dataset: dict[str, Any] = field(default_factory=dict)
    model: dict[str, Any] = field(default_factory=dict)
    machine: dict[str, Any] = field(default_factory=dict)
    compile_seconds: float | None = None
    packing: dict[str, float] = field(default_factory=dict)
    epochs: list[EpochRecord] = field(default_factory=list)
    steps: list[tuple[int, float]] = field(default_factory=list)
    validation: ValidationResult | None = None
    test: ValidationResult | None = None
    note: str = ""

    @property
    def molecules_per_s(self) -> float | None:
        """Median over the epochs without the first, which warms caches up; None before any."""
        timed = [epoch.molecules_per_s for epoch in self.epochs]
        return statistics.median(timed[1:] or timed) if timed else None

    @property
    def best_molecules_per_s(self) -> float | None:
        return max((epoch.molecules_per_s for epoch in self.epochs), default=None)

    @property
    def epoch_seconds(self) -> float | None:
        """Median over the epochs without the first."""
        timed = [epoch.seconds for epoch in self.epochs]
        return statistics.median(timed[1:] or timed) if timed else None

    @property
    def unit(self) -> str:
        return str(self.dataset.get("unit", ""))
