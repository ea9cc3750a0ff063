"""One call of training in plain eager PyTorch, to compare programs with."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import Any, final

import torch
from torch import Tensor, nn

from torchkiln.core import Options, Precision, Reduction
from torchkiln.ops._needs import natives_of_module
from torchkiln.runtime.compile._helpers import prepare_helpers
from torchkiln.training._notes import StepResult

_DTYPES = {
    Precision.FLOAT32: torch.float32,
    Precision.BFLOAT16: torch.bfloat16,
    Precision.FLOAT16: torch.float16,
}


@final
class EagerStep:
    """The loop as people write it: forward, backward, step; a `torchkiln.training` step."""

    def __init__(
        self, regression: nn.Module, options: Options, optimizer: torch.optim.Optimizer
    ) -> None:
        self._regression = regression
        self._optimizer = optimizer
        self.seconds_aside = 0.0
        self._show_progress = options.show_progress
        self._num_parts = options.combined_factor
        self._per_update = options.micro_batches_per_update
        self._scale = 1 / self._per_update if options.reduction is Reduction.MEAN else 1.0
        self._dtype = None if options.precision is None else _DTYPES[options.precision]

    def compile(self, batch: dict[str, Tensor]) -> float | None:
        """Build the native helpers of the network if they are missing: there is nothing else."""
        start = time.perf_counter()
        names = natives_of_module(self._regression)
        is_new = prepare_helpers(names, show_progress=self._show_progress)
        return time.perf_counter() - start if is_new else None

    def __call__(
        self, batch: dict[str, Tensor], counts: Tensor, is_stopping: Callable[[], bool]
    ) -> StepResult:
        device = next(self._regression.parameters()).device
        parts = {name: t.to(device).chunk(self._num_parts) for name, t in batch.items()}
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
        return StepResult(losses=torch.stack(losses).cpu(), counts=counts)

    def _precision(self, device: torch.device) -> contextlib.AbstractContextManager[Any]:
        if self._dtype is None:
            return contextlib.nullcontext()
        return torch.autocast(device.type, dtype=self._dtype)

    def use_learning_rate(self) -> None:
        """Nothing to do: torch's own step reads the optimiser."""

    def finish(self) -> None:
        """There is nothing to finish."""
