"""What the training loop must know about a module that computes its own loss."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, final

import torch
from torch import Tensor, nn

from torchkiln.core import Options, OptionsError
from torchkiln.training._evaluation import LossEvaluator
from torchkiln.training._samples import count_samples
from torchkiln.training._steps import ProgramStep
from torchkiln.training._task import Place, StepOutcome, Validation


@final
class ModuleTask:
    """Trains a module as a program, and judges it by the mean loss of held-out samples.

    Args:
        module: Its forward takes a batch and returns the loss.
        options: Of the program.
        optimizer: Over the parameters of `module`.
        evaluated: The module that is judged: `module`, or its average.
        validation_loader: Held-out batches; None: nobody judges.
    """

    def __init__(
        self,
        module: nn.Module,
        options: Options,
        optimizer: torch.optim.Optimizer,
        evaluated: nn.Module,
        validation_loader: Iterable[Any] | None,
    ) -> None:
        self._options = options
        self._step = ProgramStep(module, options, optimizer)
        self._evaluator = LossEvaluator(evaluated, options)
        self._validation_loader = validation_loader
        self._validation_loss: float | None = None

    def compile(self, batch: Any | None) -> float | None:
        return None if batch is None else self._step.compile(batch)

    def step(self, batch: Any, place: Place) -> StepOutcome:
        num_parts = self._options.combined_factor
        losses = self._step(batch)
        if len(losses) != num_parts:
            raise OptionsError(
                f"the loss that forward returns must be one number for each mini-batch, got "
                f"{len(losses)} for {num_parts}; return its mean, alone, last, or as 'loss' of a "
                "dict"
            )
        counts = count_samples(batch, num_parts)
        return StepOutcome.weighted(losses, counts, self._options.micro_batches_per_update)

    def use_learning_rate(self) -> None:
        self._step.use_learning_rate()

    def explain(self, losses: Tensor, batch: Any, place: Place) -> str:
        return f"{place.describe_loss(losses)}: look at that batch, or lower the learning rate"

    def validate(self, totals: Mapping[str, Tensor], check: Callable[[], None]) -> Validation:
        if self._validation_loader is None:
            return Validation()
        self._validation_loss = self._evaluator.evaluate(self._validation_loader, check)
        return Validation(loss=self._validation_loss)

    def finish(self, check: Callable[[], None]) -> str | None:
        loss = self._validation_loss
        if loss is None or math.isfinite(loss):
            return None
        return (
            f"the validation loss is {loss} after the last epoch: look at the held-out samples, or "
            "lower the learning rate"
        )
