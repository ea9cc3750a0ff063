"""The entry points of a program as functions of flat tensors.

Their inputs, in order:

- `infer`: module tensors, micro-batch;
- `step` (one micro-batch an update): module tensors, optimiser state, tables, micro-batch;
- `accumulate` (several): module tensors, gradient sums, global scalars, micro-batch;
- `update` (after them): updated parameters, gradient sums, optimiser state, tables.

Each is recorded once by capture; the eager backend calls it as it stands.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from torchkiln.core import Reduction
from torchkiln.data._structure import Node
from torchkiln.runtime.capture._step import StepFunction, apply_update
from torchkiln.runtime.optim._optimizers import OptimizerBinding
from torchkiln.runtime.optim._state_dtypes import HALVES, widened


class Entries:
    """Entry functions of one step; `with_gradient` fills up as gradients appear."""

    def __init__(self, step: StepFunction, optimizer: OptimizerBinding | None) -> None:
        self._step = step
        self._optimizer = optimizer
        self._num_tensors = len(step.binding.slots)
        self.with_gradient: set[int] = set()

    @property
    def node(self) -> Node | None:
        return self._step.node

    @property
    def _bound(self) -> OptimizerBinding:
        assert self._optimizer is not None, "a training entry needs an optimiser"
        return self._optimizer

    def members(self) -> list[int]:
        """Return, for each parameter of the optimiser, its position among the trainable ones."""
        position = {name: index for index, name in enumerate(self._step.trainable_names())}
        return [position[name] for name in self._bound.names]

    def infer(self, *flat: Tensor) -> list[Tensor]:
        count = self._num_tensors
        return self._step.infer(list(flat[:count]), list(flat[count:]))

    def step(self, *flat: Tensor) -> list[Tensor]:
        sizes = [self._num_tensors, self._num_state(), len(self._bound.dtypes()) + 1]
        own, state, tables, batch = _split(flat, sizes)
        outputs, grads, params = self._gradients(own, batch, tables[-1])
        apply_update(
            self._bound, self._step.options, params, grads, self._by_parameter(state), tables
        )
        return outputs

    def accumulate(self, *flat: Tensor) -> list[Tensor]:
        own, sums, (scalars,), batch = _split(flat, [self._num_tensors, len(self._bound.names), 1])
        outputs, grads, _ = self._gradients(own, batch, scalars)
        with torch.no_grad():
            for total, grad in zip(sums, grads, strict=True):
                if grad is not None:
                    total.add_(self._share(grad) if total.dtype in HALVES else grad)
        return outputs

    def _share(self, grad: Tensor) -> Tensor:
        """Return what a gradient adds to a sum in half precision: a mean does not overflow."""
        if self._step.options.reduction is not Reduction.MEAN:
            return grad
        return widened(grad) * (1.0 / self._step.options.micro_batches_per_update)

    def update(self, *flat: Tensor) -> list[Tensor]:
        count = len(self._bound.names)
        params, sums, state, tables = _split(flat, [count, count, self._num_state()])
        grads = [total if m in self.with_gradient else None for m, total in enumerate(sums)]
        apply_update(
            self._bound, self._step.options, params, grads, self._by_parameter(state), tables
        )
        with torch.no_grad():
            for total in sums:
                total.zero_()
        return []

    def _gradients(
        self, own: list[Tensor], batch: list[Tensor], scalars: Tensor
    ) -> tuple[list[Tensor], list[Tensor | None], list[Tensor]]:
        scale = scalars[1] if self._bound.recipe.scales_loss else None
        outputs, grads = self._step.gradients(own, batch, scale)
        members = self.members()
        mine = [grads[position] for position in members]
        self.with_gradient.update(m for m, grad in enumerate(mine) if grad is not None)
        trainable = self._step.trainable(own)
        return outputs, mine, [trainable[position] for position in members]

    def _num_state(self) -> int:
        return sum(len(self._bound.rule(m).state_names) for m in range(len(self._bound.names)))

    def _by_parameter(self, flat: list[Tensor]) -> list[dict[str, Tensor]]:
        remaining = iter(flat)
        return [
            {name: next(remaining) for name in self._bound.rule(member).state_names}
            for member in range(len(self._bound.names))
        ]


def _split(flat: Sequence[Tensor], counts: list[int]) -> list[list[Tensor]]:
    """Cut a flat list into parts of the given sizes and the rest."""
    parts, start = [], 0
    for count in counts:
        parts.append(list(flat[start : start + count]))
        start += count
    return [*parts, list(flat[start:])]
