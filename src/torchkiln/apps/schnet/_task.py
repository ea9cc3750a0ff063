"""What the training loop must know about molecules."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Mapping
from typing import Any, final

from torch import Tensor, nn

from torchkiln.apps.schnet._batches import arguments_of, count_real, real_indices
from torchkiln.apps.schnet._evaluation import Evaluator
from torchkiln.apps.schnet._filter_tables import TableWatch, tabulated
from torchkiln.apps.schnet._job import TrainingJob
from torchkiln.apps.schnet._profile import profile_call
from torchkiln.apps.schnet._steps import EagerStep
from torchkiln.report import ValidationResult
from torchkiln.training._best import BestWeights
from torchkiln.training._folding import Folding
from torchkiln.training._notes import StepResult
from torchkiln.training._ranks import Ranks
from torchkiln.training._steps import ProgramStep, TrainingStep
from torchkiln.training._stopping import Stopping
from torchkiln.training._task import BadLoss, Place, StepOutcome, Validation

_MAX_NAMED = 20


@final
class MoleculeTask:
    """Trains on molecules, and judges by errors in physical units.

    Args:
        job: What is trained.
        evaluated: The regression that is judged: that of the job, or its average.
        best: Its weights with the smallest validation error; None: nothing is validated.
        tell: Shows a line to the person.
        ranks: The processes that train together.
    """

    def __init__(
        self,
        job: TrainingJob,
        evaluated: nn.Module,
        best: BestWeights | None,
        tell: Callable[[str], None],
        ranks: Ranks,
    ) -> None:
        self._job = job
        self._ranks = ranks
        self.folding = Folding.of(job.options)
        self._best = best
        self._tell = tell
        make_step = EagerStep if job.eager else ProgramStep
        profile_dir = job.profile_dir if ranks.is_first else None
        options = job.options.replace(profile_dir=profile_dir)
        self._step: TrainingStep = make_step(job.regression.train(), options, job.optimizer)
        self._evaluator = Evaluator(
            evaluated, job.dataset, eager=job.eager, profile_dir=profile_dir
        )
        self.tables = TableWatch(tabulated(evaluated, job.train_loader.spec))
        # Programs write their own.
        self._wants_profile = job.profile_dir is not None and job.eager
        self.validation: ValidationResult | None = None
        self.test: ValidationResult | None = None

    def compile(self, batch: Any | None) -> float | None:
        job = self._job
        seconds = None if batch is None else self._step.compile(arguments_of(batch))
        loader = job.validation_loader
        if loader is not None and not job.eager:
            seconds = (seconds or 0.0) + self._evaluator.compile(loader, self._ranks)
        return seconds

    def step(self, batch: Any, place: Place, is_stopping: Callable[[], bool]) -> StepOutcome:
        counts = count_real(batch, self._job.options.combined_factor)
        arguments = arguments_of(batch)
        result, overhead_s = self._call(
            lambda: self._step(arguments, counts, is_stopping),
            is_first=place.step == 0 and place.num_steps > 1,
        )
        per_update = self.folding.per_update
        return StepOutcome.weighted(result, per_update, int(counts.sum()), overhead_s)

    def _call(self, call: Callable[[], StepResult], *, is_first: bool) -> tuple[StepResult, float]:
        """Return the result, and the seconds of the profiler, which are not training."""
        if not self._wants_profile or is_first:
            before = self._step.seconds_aside
            result = call()
            return result, self._step.seconds_aside - before
        self._wants_profile = False
        assert self._job.profile_dir is not None
        start = time.perf_counter()
        result, seconds, paths = profile_call(call, self._job.profile_dir)
        overhead_s = time.perf_counter() - start - seconds
        self._tell(f"profile of one step: {', '.join(map(str, paths))}")
        return result, overhead_s

    def use_learning_rate(self) -> None:
        self._step.use_learning_rate()

    def explain(self, bad: BadLoss, batch: Any, place: Place) -> str:
        num_parts = self._job.options.combined_factor
        indices = real_indices(batch, num_parts, bad.own_number).tolist()
        names = self._job.dataset.molecules.names
        named = [f"{i} ({names[i]})" if names is not None else str(i) for i in indices]
        more = f" and {len(named) - _MAX_NAMED} more" if len(named) > _MAX_NAMED else ""
        return (
            f"{place.describe(bad)}, with the molecules {', '.join(named[:_MAX_NAMED])}"
            f"{more}: look at these, or lower the learning rate"
        )

    def validate(self, totals: Mapping[str, Tensor], stopping: Stopping) -> Validation:
        loader = self._job.validation_loader
        if loader is None:
            return Validation(warning=self.tables.look())
        evaluation = self._evaluator.evaluate(loader, stopping)
        if self._best is None or self._best.is_improved_by(evaluation.result.mae):
            self.validation = evaluation.result
        return Validation(
            mae=evaluation.result.mae, loss=evaluation.loss, warning=self.tables.look()
        )

    def finish(self, stopping: Stopping) -> str | None:
        self._step.finish()
        with contextlib.nullcontext() if self._best is None else self._best.in_use():
            problem = self._judge(stopping)
        self._evaluator.finish()
        return problem

    def _judge(self, stopping: Stopping) -> str | None:
        """Predict what was not predicted yet; return what is wrong with that."""
        job = self._job
        if job.validation_loader is not None and self.validation is None:
            self.validation = self._evaluator.evaluate(job.validation_loader, stopping).result
        if job.test_loader is not None:
            self.test = self._evaluator.evaluate(job.test_loader, stopping).result
        for name, split in (("validation", self.validation), ("test", self.test)):
            if split is not None and not math.isfinite(split.mae):
                return (
                    f"the {name} error is {split.mae} after the last epoch: look at the molecules "
                    "of that split, or lower the learning rate"
                )
        return None
