"""What a training run leaves behind, as plain values: no torch, no drawing, no printing."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

Status = Literal["finished", "interrupted", "failed"]
Array = npt.NDArray[np.float64]
# An error below this share of the largest value is rounding, not something that could be learnt.
_ROUNDING = 1e-12


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRecord:
    """Figures of one call of the training step.

    Args:
        epoch: The running one, from 0.
        step: Number of the call within the epoch, from 0.
        steps_in_epoch: How many calls the epoch has.
        loss: Mean over the real samples of the call.
        samples: How many real samples this call had.
        seconds: What this call took, waiting for its batch included.
        figures: What else is known about it, by name.
    """

    epoch: int
    step: int
    steps_in_epoch: int
    loss: float
    samples: int
    seconds: float
    figures: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class EpochRecord:
    """Figures of one epoch.

    Args:
        epoch: Its number, from 0; a resumed run continues to count.
        loss: Mean over the real samples.
        seconds: Seconds of training, without validation.
        samples: How many real samples were trained on.
        samples_per_s: `samples` over `seconds`.
        learning_rate: The rate at the end of the epoch.
        validation_mae: In the unit of the target, None if the epoch was not validated.
        validation_loss: None if the epoch was not validated.
        figures: What else is known about it, by name.
    """

    epoch: int
    loss: float
    seconds: float
    samples: int
    samples_per_s: float
    learning_rate: float
    validation_mae: float | None = None
    validation_loss: float | None = None
    figures: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, eq=False)
class ValidationResult:
    """Predictions for one split, beside the truth, in physical units.

    Args:
        predicted: [num_samples]
        true: [num_samples]
        mae: Mean absolute error.
        rmse: Root of the mean squared error.
        baseline_mae: Error of a linear regression on the number of atoms of each element, fitted to
            the training split; None where there is none.
        reference: [num_samples]; what that regression predicts for each sample, so that a picture
            can show what is left of the target without it; None where it is not known (results that
            were written before this field existed).
    """

    predicted: Array
    true: Array
    mae: float
    rmse: float
    baseline_mae: float | None = None
    reference: Array | None = None

    @classmethod
    def compare(
        cls,
        predicted: Array,
        true: Array,
        *,
        reference: Array | None = None,
        baseline_mae: float | None = None,
    ) -> ValidationResult:
        """Compute the errors of `predicted`, and those of `reference` unless they are given."""
        predicted, true = np.asarray(predicted, np.float64), np.asarray(true, np.float64)
        error = predicted - true
        mae = float(np.abs(error).mean()) if len(error) else float("nan")
        rmse = float(np.sqrt((error**2).mean())) if len(error) else float("nan")
        if reference is not None:
            reference = np.asarray(reference, np.float64)
            if baseline_mae is None and len(true):
                baseline_mae = float(np.abs(reference - true).mean())
        return cls(predicted, true, mae, rmse, baseline_mae, reference)

    @property
    def factor(self) -> float | None:
        """How many times smaller the error is than the baseline's."""
        if self.baseline_mae is None or not self.mae > 0:
            return None
        return self.baseline_mae / self.mae

    @property
    def is_baseline_exact(self) -> bool:
        """Whether the baseline is right to the last digits, so that nothing is left to learn."""
        if self.baseline_mae is None:
            return False
        return self.baseline_mae <= _ROUNDING * float(np.abs(self.true).max(initial=0.0))


@dataclass(frozen=True, slots=True)
class PredictedMolecule:
    """One prediction beside the truth, in physical units, and the molecule to look at.

    Args:
        name: Of the molecule.
        z: Atomic numbers.
        pos: Coordinates in angstrom, three for each atom.
        true: What it should be.
        predicted: What it is.
    """

    name: str
    z: tuple[int, ...]
    pos: tuple[tuple[float, float, float], ...]
    true: float
    predicted: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RankRecord:
    """What one of several processes did.

    Args:
        host: Where it ran.
        threads: It computed with.
        samples: Real ones that it trained on since it was started, without those of its first epoch
            if there are others.
        seconds: Of that training.
        collective_seconds: Those of them in which it added up gradients with the others, or waited
            for them.
    """

    host: str
    threads: int
    samples: int
    seconds: float
    collective_seconds: float

    @property
    def samples_per_s(self) -> float:
        return self.samples / self.seconds if self.seconds else 0.0

    @property
    def collective_share(self) -> float:
        """Share of the time that was spent with the others."""
        return self.collective_seconds / self.seconds if self.seconds else 0.0


@dataclass(frozen=True, slots=True)
class WorldRecord:
    """What several processes did together.

    Args:
        ranks: One for each process.
    """

    ranks: tuple[RankRecord, ...]

    @property
    def size(self) -> int:
        return len(self.ranks)

    @property
    def num_hosts(self) -> int:
        return len({rank.host for rank in self.ranks})

    @property
    def samples_per_s(self) -> float:
        """Of all processes together."""
        return sum(rank.samples_per_s for rank in self.ranks)

    @property
    def collective_share(self) -> float:
        """Share of the time of all processes that was spent with the others."""
        seconds = sum(rank.seconds for rank in self.ranks)
        return sum(rank.collective_seconds for rank in self.ranks) / seconds if seconds else 0.0


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class RunResult:
    """Everything about one run that a report shows.

    Args:
        status: How the run ended.
        settings: What was asked for, nested like the config file.
        dataset: `name`, `target`, `unit`, `source`, `sizes` (samples by split), and `form` (what
            was done to the target before it was learnt, in words).
        model: `name`, `parameters` (how many), and whatever else describes it.
        machine: Versions, processor, threads.
        compile_seconds: Seconds of compilation before the first step; None if nothing was compiled.
        packing: Share of slots that hold real data, by axis ("nodes", "edges", "graphs").
        epochs: In order; the last one may be incomplete if the run was interrupted.
        steps: (number of the update from the start, loss).
        validation: With the weights of `best_epoch`; if that is None, with the last ones.
        test: Likewise.
        note: Why the run failed, or how to go on after an interrupt.
        counted: What a sample is, in the plural: "molecules", "images".
        best_epoch: After which epoch, from 0, the weights were validated best; those are kept and
            judged. None: the last weights are.
        advice: What to try if the run is worse than its baseline.
        worst: Molecules of the split that the run is judged by whose predictions are farthest off,
            the worst first.
        world: What each process did, if there were several.
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
    counted: str = "samples"
    best_epoch: int | None = None
    advice: str = ""
    worst: list[PredictedMolecule] = field(default_factory=list)
    world: WorldRecord | None = None

    @property
    def judged(self) -> ValidationResult | None:
        """The split that a run is judged by: the test set if it was predicted."""
        return self.validation if self.test is None else self.test

    @property
    def is_beaten(self) -> bool:
        """Whether the run is finished and no better than its baseline, so that it learnt nothing.

        One that was interrupted may still learn.
        """
        split = self.judged
        if self.status != "finished" or split is None or split.baseline_mae is None:
            return False
        if split.is_baseline_exact:
            return split.mae > _ROUNDING * float(np.abs(split.true).max(initial=0.0))
        return not split.mae < split.baseline_mae

    @property
    def samples_per_s(self) -> float | None:
        """Median over the epochs without the first, which warms caches up; None before any."""
        timed = [epoch.samples_per_s for epoch in self.epochs]
        return statistics.median(timed[1:] or timed) if timed else None

    @property
    def best_samples_per_s(self) -> float | None:
        return max((epoch.samples_per_s for epoch in self.epochs), default=None)

    @property
    def epoch_seconds(self) -> float | None:
        """Median over the epochs without the first."""
        timed = [epoch.seconds for epoch in self.epochs]
        return statistics.median(timed[1:] or timed) if timed else None

    @property
    def unit(self) -> str:
        return str(self.dataset.get("unit", ""))
