"""The entry points of a program as functions of flat tensors.

Their inputs, in order:

- `infer`: module tensors, micro-batch;
- `step` (one micro-batch an update): module tensors, optimiser state, tables, micro-batch;
- `accumulate` (several): module tensors, gradient sums, global scalars, micro-batch;
- `update` (after them): updated parameters, gradient sums, optimiser state, tables. If processes
  divide the update, parts take the place of parameters, sums and state (`optim/_division.py`), and
  the norm of all gradients comes last.

Each is recorded once by capture; the eager backend calls it as it stands.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from torchkiln.core import Options, Reduction
from torchkiln.data._structure import Node
from torchkiln.runtime.capture._step import StepFunction, apply_update
from torchkiln.runtime.optim._arrangement import Arrangement
from torchkiln.runtime.optim._state_dtypes import HALVES, widened
from torchkiln.runtime.optim._tables import scale_of_loss, share_of_micro_batch
from torchkiln.runtime.passes._origins import updating


@dataclass(frozen=True, slots=True, eq=False)
class EntryResult:
    """The tensors that an entry returns, and what only its run could tell."""

    outputs: list[Tensor]
    # The structure of the outputs; None for an entry that runs no forward.
    node: Node | None = None
    # Names of the buffers that forward replaced by new tensors.
    reassigned: tuple[str, ...] = ()
    # Positions of the parameters of the update that the loss reaches.
    reached: frozenset[int] = frozenset()
    # What is trained on, and the names of torch's loss functions that forward called.
    loss: Tensor | None = None
    loss_functions: tuple[str, ...] = ()


def entry_names(options: Options, *, training: bool) -> list[str]:
    """Return the entry points that a program with these options has."""
    if not training:
        return ["infer"]
    # A stage that runs one micro-batch an update sums up, too: backward is an entry of its own.
    if options.total_micro_batches_per_update == 1 and not options.is_divided:
        return ["step"]
    return ["accumulate", "update"]


class Entries:
    """Entry functions of one step."""

    def __init__(self, step: StepFunction, arrangement: Arrangement | None) -> None:
        self._step = step
        self._arrangement = arrangement
        self._num_tensors = len(step.binding.bound)

    @property
    def _arranged(self) -> Arrangement:
        assert self._arrangement is not None, "a training entry needs an optimiser"
        return self._arrangement

    def members(self) -> list[int]:
        """Return, for each parameter of the optimiser, its position among the trainable ones."""
        position = {name: index for index, name in enumerate(self._step.trainable_names())}
        return [position[name] for name in self._arranged.names]

    def infer(self, *flat: Tensor) -> EntryResult:
        count = self._num_tensors
        result = self._step.infer(list(flat[:count]), list(flat[count:]))
        return EntryResult(result.outputs, result.node, tuple(result.reassigned))

    def step(self, *flat: Tensor) -> EntryResult:
        sizes = [self._num_tensors, self._num_state(), len(self._arranged.dtypes()) + 1]
        own, state, tables, batch = _split(flat, sizes)
        result, grads = self._gradients(own, batch, tables[-1])
        trainable = self._step.trainable(own)
        params = [trainable[position] for position in self.members()]
        self._apply(params, grads, state, tables)
        return result

    def accumulate(self, *flat: Tensor) -> EntryResult:
        sizes = [self._num_tensors, len(self._arranged.names), 1]
        own, sums, (scalars,), batch = _split(flat, sizes)
        result, grads = self._gradients(own, batch, scalars)
        with torch.no_grad():
            for name, total, grad in zip(self._arranged.names, sums, grads, strict=True):
                if grad is not None:
                    with updating(name):
                        is_half = total.dtype in HALVES
                        total.add_(self._share(grad, scalars) if is_half else grad)
        return result

    def _share(self, grad: Tensor, scalars: Tensor) -> Tensor:
        """Return what a gradient adds to a sum in half precision: a mean does not overflow."""
        if self._step.options.reduction is not Reduction.MEAN:
            return grad
        wide = widened(grad)
        return wide * share_of_micro_batch(scalars, wide.dtype)

    def update(self, *flat: Tensor, reached: Collection[int]) -> EntryResult:
        """Change the parameters at the positions that gradients reached since the last update."""
        count = len(self._arranged.names)
        params, sums, state, tables = _split(flat, [count, count, self._num_state()])
        grads = [total if m in reached else None for m, total in enumerate(sums)]
        self._apply(params, grads, state, tables)
        with torch.no_grad():
            for name, total in zip(self._arranged.names, sums, strict=True):
                with updating(name):
                    total.zero_()
        return EntryResult([])

    def update_parts(self, *flat: Tensor) -> EntryResult:
        """Change this process' parts; return where those go whose norms others must know, too."""
        count = len(self._arranged.names)
        sizes = [count, count, self._num_state(), len(self._arranged.dtypes()) + 1]
        params, sums, state, tables, (norm,) = _split(flat, sizes)
        return EntryResult(self._apply(params, list(sums), state, tables, norm))

    def _gradients(
        self, own: list[Tensor], batch: list[Tensor], scalars: Tensor
    ) -> tuple[EntryResult, list[Tensor | None]]:
        """Run forward and backward; return the gradients of the parameters that are updated."""
        scale = scale_of_loss(scalars) if self._arranged.recipe.scales_loss else None
        result = self._step.gradients(own, batch, scale)
        grads = [result.gradients[position] for position in self.members()]
        reached = frozenset(m for m, grad in enumerate(grads) if grad is not None)
        told = EntryResult(
            result.outputs,
            result.node,
            tuple(result.reassigned),
            reached,
            result.loss,
            result.loss_functions,
        )
        return told, grads

    def _apply(
        self,
        params: list[Tensor],
        grads: list[Tensor | None],
        state: list[Tensor],
        tables: list[Tensor],
        norm: Tensor | None = None,
    ) -> list[Tensor]:
        own = self._by_parameter(state)
        return apply_update(self._arranged, self._step.options, params, grads, own, tables, norm)

    def _num_state(self) -> int:
        return sum(
            len(self._arranged.rule(m).state_names) for m in range(len(self._arranged.names))
        )

    def _by_parameter(self, flat: list[Tensor]) -> list[dict[str, Tensor]]:
        remaining = iter(flat)
        return [
            {name: next(remaining) for name in self._arranged.rule(member).state_names}
            for member in range(len(self._arranged.names))
        ]


def _split(flat: Sequence[Tensor], counts: list[int]) -> list[list[Tensor]]:
    """Cut a flat list into parts of the given sizes and the rest."""
    parts, start = [], 0
    for count in counts:
        parts.append(list(flat[start : start + count]))
        start += count
    return [*parts, list(flat[start:])]
