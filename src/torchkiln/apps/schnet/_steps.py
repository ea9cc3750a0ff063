"""One call of training: as a compiled program, or in plain eager PyTorch."""

from __future__ import annotations

import contextlib
from typing import Any, Protocol, final

import torch
from torch import Tensor, nn

from torchkiln.apps.schnet._batches import arguments_of
from torchkiln.core import Options, OutputMode, Precision, Reduction
from torchkiln.runtime import training_model

_DTYPES = {
    Precision.FLOAT32: torch.float32,
    Precision.BFLOAT16: torch.bfloat16,
    Precision.FLOAT16: torch.float16,
}


class TrainingStep(Protocol):
    """Trains on a combined batch: `device_iterations` weight updates."""

    def compile(self, batch: Any) -> float | None:
        """Get ready for batches like this one; return the seconds, None if nothing is compiled."""

    def __call__(self, batch: Any) -> Tensor:
        """Return the loss of each mini-batch, in order."""

    def use_learning_rate(self) -> None:
        """Take note of numbers that changed in the optimiser."""


@final
class ProgramStep:
    """Whole calls in one program."""

    def __init__(
        self, regression: nn.Module, options: Options, optimizer: torch.optim.Optimizer
    ) -> None:
        options = options.replace(output_mode=OutputMode.ALL)
        self._program = training_model(regression, options, optimizer)
        self._optimizer = optimizer

    def compile(self, batch: Any) -> float | None:
        self._program.compile(**arguments_of(batch))
        return self._program.compilation_time

    def __call__(self, batch: Any) -> Tensor:
        losses: Tensor = self._program(**arguments_of(batch))[-1]
        return losses.reshape(-1).cpu()

    def use_learning_rate(self) -> None:
        self._program.set_optimizer(self._optimizer)


@final
class EagerStep:
    """The same loop as people write it, for comparison: forward, backward, step."""

    def __init__(
        self, regression: nn.Module, options: Options, optimizer: torch.optim.Optimizer
    ) -> None:
        self._regression = regression
        self._optimizer = optimizer
        self._num_parts = options.combined_factor
        self._per_update = options.micro_batches_per_update
        self._scale = 1 / self._per_update if options.reduction is Reduction.MEAN else 1.0
        self._dtype = None if options.precision is None else _DTYPES[options.precision]

    def compile(self, batch: Any) -> float | None:
        return None

    def __call__(self, batch: Any) -> Tensor:
        device = next(self._regression.parameters()).device
        arguments = arguments_of(batch)
        parts = {name: t.to(device).chunk(self._num_parts) for name, t in arguments.items()}
        losses = []
        for number in range(self._num_parts):
            if number % self._per_update == 0:
                self._optimizer.zero_grad()
            with self._precision(device):
                loss = self._regression(**{name: cut[number] for name, cut in parts.items()})[-1]
            (loss * self._scale).backward()
            losses.append(loss.detach())
            if (number + 1) % self._per_update == 0:
                self._optimizer.step()
        return torch.stack(losses).cpu()

    def _precision(self, device: torch.device) -> contextlib.AbstractContextManager[Any]:
        if self._dtype is None:
            return contextlib.nullcontext()
        return torch.autocast(device.type, dtype=self._dtype)

    def use_learning_rate(self) -> None:
        """Nothing to do: torch's own step reads the optimiser."""
