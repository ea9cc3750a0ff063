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
from torchkiln.training._steps import ProgramStep, TrainingStep
from torchkiln.training._task import Place, StepOutcome, Validation, first_not_finite

_MAX_NAMED = 20


@final
class MoleculeTask:
    """Trains on molecules, and judges by errors in physical units.

    Args:
        job: What is trained.
        evaluated: The regression that is judged: that of the job, or its average.
        best: Its weights with the smallest validation error; None: nothing is validated.
        tell: Shows a line to the person.
    """

    def __init__(
        self,
        job: TrainingJob,
        evaluated: nn.Module,
        best: BestWeights | None,
        tell: Callable[[str], None],
    ) -> None:
        self._job = job
        self._best = best
        self._tell = tell
        make_step = EagerStep if job.eager else ProgramStep
        options = job.options.replace(profile_dir=job.profile_dir)
        self._step: TrainingStep = make_step(job.regression.train(), options, job.optimizer)
        self._evaluator = Evaluator(
            evaluated, job.dataset, eager=job.eager, profile_dir=job.profile_dir
        )
        self.tables = TableWatch(tabulated(evaluated, job.train_loader.spec))
        # Programs write their own.
        self._wants_profile = job.profile_dir is not None and job.eager
        self.validation: ValidationResult | None = None
        self.test: ValidationResult | None = None

    def compile(self, batch: Any | None) -> float | None:
        job = self._job
        seconds = None if batch is None else self._step.compile(arguments_of(batch))
        if job.validation_loader is not None and not job.eager:
            seconds = (seconds or 0.0) + self._evaluator.compile(job.validation_loader)
        return seconds

    def step(self, batch: Any, place: Place) -> StepOutcome:
        options = self._job.options
        losses, overhead_s = self._call(batch, place)
        counts = count_real(batch, options.combined_factor)
        return StepOutcome.weighted(losses, counts, options.micro_batches_per_update, overhead_s)

    def _call(self, batch: Any, place: Place) -> tuple[Tensor, float]:
        """Return losses, and the seconds of the profiler, which are not training."""
        arguments = arguments_of(batch)
        is_warm = place.step > 0 or place.num_steps == 1
        if not (self._wants_profile and is_warm):
            before = self._step.seconds_aside
            losses = self._step(arguments)
            return losses, self._step.seconds_aside - before
        self._wants_profile = False
        assert self._job.profile_dir is not None
        start = time.perf_counter()
        losses, seconds, paths = profile_call(lambda: self._step(arguments), self._job.profile_dir)
        overhead_s = time.perf_counter() - start - seconds
        self._tell(f"profile of one step: {', '.join(map(str, paths))}")
        return losses, overhead_s

    def use_learning_rate(self) -> None:
        self._step.use_learning_rate()

    def explain(self, losses: Tensor, batch: Any, place: Place) -> str:
        part = first_not_finite(losses)
        indices = real_indices(batch, len(losses), part).tolist()
        names = self._job.dataset.molecules.names
        named = [f"{i} ({names[i]})" if names is not None else str(i) for i in indices]
        more = f" and {len(named) - _MAX_NAMED} more" if len(named) > _MAX_NAMED else ""
        return (
            f"{place.describe_loss(losses)}, with the molecules {', '.join(named[:_MAX_NAMED])}"
            f"{more}: look at these, or lower the learning rate"
        )

    def validate(self, totals: Mapping[str, Tensor], check: Callable[[], None]) -> Validation:
        loader = self._job.validation_loader
        if loader is None:
            return Validation(warning=self.tables.look())
        evaluation = self._evaluator.evaluate(loader, check=check)
        if self._best is None or self._best.is_improved_by(evaluation.result.mae):
            self.validation = evaluation.result
        return Validation(
            mae=evaluation.result.mae, loss=evaluation.loss, warning=self.tables.look()
        )

    def finish(self, check: Callable[[], None]) -> str | None:
        self._step.finish()
        with contextlib.nullcontext() if self._best is None else self._best.in_use():
            problem = self._judge(check)
        self._evaluator.finish()
        return problem

    def _judge(self, check: Callable[[], None]) -> str | None:
        """Predict what was not predicted yet; return what is wrong with that."""
        job = self._job
        if job.validation_loader is not None and self.validation is None:
            self.validation = self._evaluator.evaluate(job.validation_loader, check=check).result
        if job.test_loader is not None:
            self.test = self._evaluator.evaluate(job.test_loader, check=check).result
        for name, split in (("validation", self.validation), ("test", self.test)):
            if split is not None and not math.isfinite(split.mae):
                return (
                    f"the {name} error is {split.mae} after the last epoch: look at the molecules "
                    "of that split, or lower the learning rate"
                )
        return None
