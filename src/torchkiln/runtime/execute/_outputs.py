"""Combining the outputs of many micro-batches into the result of one call."""

from __future__ import annotations

import torch
from torch import Tensor

from torchkiln.core import NonFiniteError, Options, OutputMode


class OutputCollector:
    """Keeps what an output mode returns, fed with micro-batches in order."""

    def __init__(self, options: Options, mode: OutputMode, period: int, training: bool) -> None:
        self._mode = mode
        self._period = period
        self._replicas = options.replication_factor
        accumulation = options.gradient_accumulation if training else 1
        self._per_iteration = accumulation * self._replicas
        self._total = options.device_iterations * self._per_iteration
        self._kept: list[list[Tensor]] = []
        self._count = 0
        self.last: list[Tensor] = []

    def add(self, outputs: list[Tensor]) -> None:
        """Take the outputs of the next micro-batch."""
        index = self._count
        self.last = outputs
        self._count += 1
        if self._mode is OutputMode.ALL:
            self._kept.append(outputs)
        elif self._mode is OutputMode.FINAL:
            if index >= self._total - self._replicas:
                self._kept.append(outputs)
        elif self._mode is OutputMode.EVERY_N:
            if (index // self._per_iteration + 1) % self._period == 0:
                self._kept.append(outputs)
        elif index < self._replicas:
            self._kept.append(list(outputs))
        else:
            sums = self._kept[index % self._replicas]
            self._kept[index % self._replicas] = [
                _add(a, b) for a, b in zip(sums, outputs, strict=True)
            ]

    @property
    def num_kept(self) -> int:
        """How many micro-batches are part of the result."""
        return len(self._kept)

    def result(self) -> list[Tensor]:
        """Return one tensor an output: micro-batches joined along dim 0, scalars stacked."""
        if len(self._kept) == 1:
            return list(self._kept[0])
        return [
            torch.stack(column) if column[0].dim() == 0 else torch.cat(column)
            for column in zip(*self._kept, strict=True)
        ]


def _add(a: Tensor, b: Tensor) -> Tensor:
    """Return the sum; booleans count, as in torch.sum."""
    return (a.long() if a.dtype == torch.bool else a) + b


def check_finite(outputs: list[Tensor]) -> None:
    """Raise `NonFiniteError` if an output is NaN or infinite."""
    for index, output in enumerate(outputs):
        if output.is_floating_point() and not bool(torch.isfinite(output).all()):
            raise NonFiniteError(
                f"output {index} contains NaN or infinity (check_finite is on); lower the "
                "learning rate, clip gradients (max_grad_norm) or look for a division by zero"
            )
