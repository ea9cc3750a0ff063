"""What the training loop must know about a module that computes its own loss."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, final

import torch
from torch import Tensor, nn

from torchkiln.core import Options, OptionsError
from torchkiln.training._evaluation import LossEvaluator
from torchkiln.training._folding import Folding
from torchkiln.training._ranks import Ranks
from torchkiln.training._samples import count_samples
from torchkiln.training._steps import ProgramStep
from torchkiln.training._stopping import Stopping
from torchkiln.training._task import BadLoss, Place, StepOutcome, Validation


@final
class ModuleTask:
    """Trains a module as a program, and judges it by the mean loss of held-out samples.

    Args:
        module: Its forward takes a batch and returns the loss.
        options: Of the program.
        optimizer: Over the parameters of `module`.
        evaluated: The module that is judged: `module`, or its average.
        validation_loader: Held-out batches; None: nobody judges.
        ranks: The processes that train together.
    """

    def __init__(
        self,
        module: nn.Module,
        options: Options,
        optimizer: torch.optim.Optimizer,
        evaluated: nn.Module,
        validation_loader: Iterable[Any] | None,
        ranks: Ranks,
    ) -> None:
        self._options = options
        self.folding = Folding.of(options)
        self._step = ProgramStep(module, options, optimizer)
        self._evaluator = LossEvaluator(evaluated, options, ranks)
        self._validation_loader = validation_loader
        self._validation_loss: float | None = None

    def compile(self, batch: Any | None) -> float | None:
        return None if batch is None else self._step.compile(batch)

    def step(self, batch: Any, place: Place, is_stopping: Callable[[], bool]) -> StepOutcome:
        counts = count_samples(batch, self._options.combined_factor)
        result = self._step(batch, counts, is_stopping)
        if len(result.losses) != len(result.counts):
            raise OptionsError(
                f"the loss that forward returns must be one number for each mini-batch, got "
                f"{len(result.losses)} for {len(result.counts)}; return its mean, alone, last, or "
                "as 'loss' of a dict"
            )
        return StepOutcome.weighted(result, self.folding.per_update, int(counts.sum()))

    def use_learning_rate(self) -> None:
        self._step.use_learning_rate()

    def explain(self, bad: BadLoss, batch: Any, place: Place) -> str:
        return f"{place.describe(bad)}: look at that batch, or lower the learning rate"

    def validate(self, totals: Mapping[str, Tensor], stopping: Stopping) -> Validation:
        if self._validation_loader is None:
            return Validation()
        self._validation_loss = self._evaluator.evaluate(self._validation_loader, stopping)
        return Validation(loss=self._validation_loss)

    def finish(self, stopping: Stopping) -> str | None:
        loss = self._validation_loss
        if loss is None or math.isfinite(loss):
            return None
        return (
            f"the validation loss is {loss} after the last epoch: look at the held-out samples, or "
            "lower the learning rate"
        )
