"""`StageSums`: the gradient sums of one stage, and what all processes share before an update."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, final

import torch
from torch import Tensor

from torchkiln.core import Options, Reduction, span
from torchkiln.distributed import Group
from torchkiln.runtime.execute._agreement import digest_of_program, number_of_program
from torchkiln.runtime.execute._clocked import Run
from torchkiln.runtime.execute._exchange import as_real, require_same_update
from torchkiln.runtime.execute._gradient_sums import GradientSums
from torchkiln.runtime.execute._notes import Notes
from torchkiln.runtime.execute._staged_calls import SharedSums
from torchkiln.runtime.optim._binding import OptimizerBinding
from torchkiln.runtime.optim._state_dtypes import HALVES

# Each process tells the number of its update, digests of the numbers that it updates with, for its
# stage and for all, and the square of the norm of its gradients.
_UPDATE, _DIGEST, _COMMON_DIGEST, _NORM = range(4)
_NUM_CHECKS = 4


@final
class StageSums(SharedSums):
    """Holds the sums of a stage, adds up those of all pipelines, and limits their joint norm.

    Args:
        optimizer: Whose parameters have sums: those of the stage.
        device: Where they are.
        notes: What processes tell each other.
        group: All processes.
        options: Of the program.
    """

    def __init__(
        self,
        optimizer: OptimizerBinding,
        device: torch.device,
        notes: Notes,
        group: Group,
        options: Options,
    ) -> None:
        self._optimizer = optimizer
        self._device = device
        self._notes = notes
        self._group = group
        self._options = options
        size, stages = options.num_processes, options.num_stages
        # The processes that have the same stage of different pipelines.
        self._same_stage = group.divided([range(first, size, stages) for first in range(stages)])
        self._program = number_of_program(group)
        self._num_updates = 0
        self._begun_at = group.seconds
        self.fit()

    def fit(self) -> None:
        forms = self._optimizer.sum_forms()
        num_pipelines = self._options.num_pipelines
        self._sums = GradientSums(forms, self._device, num_ranks=num_pipelines)

    @property
    def sums(self) -> list[Tensor]:
        return self._sums.views

    @property
    def wants_outputs(self) -> bool:
        return self._notes.count > 0

    @property
    def seconds(self) -> float:
        return self._group.seconds - self._begun_at

    def go_apart(self) -> Callable[[], None]:
        raise AssertionError("a stage does nothing that the others do not know of")

    def begin_call(self) -> None:
        self._notes.forget()
        self._name_place()

    def end_call(self) -> None:
        """Nothing: stages hold different weights, and other writes to them are not looked for."""

    def clear_(self) -> None:
        self._sums.clear_()

    def update(self, run: Run, tables: list[Tensor]) -> None:
        optimizer = self._optimizer
        run([*optimizer.params, *self.sums, *optimizer.state_tensors, *tables])

    def note(self, outputs: list[Any]) -> None:
        raise AssertionError("every update of a stage is shared")

    def share(self, outputs: list[Any]) -> None:
        """Replace the sums by those of all pipelines, and hear what each process notes.

        Raises:
            DistributedError: A process is missing, or is at another update.
        """
        self._name_place()
        with span("collective", "gradients"):
            for buffer in self._sums.buffers.values():
                self._same_stage.sum_(as_real(buffer), self._options.reduction_order.value)
        rows = self._tell_all(self._notes.written(outputs))
        self._check(rows)
        self._limit_norm(rows)
        self._notes.hear(rows[:, _NUM_CHECKS:].float())
        self._num_updates += 1

    def _name_place(self) -> None:
        self._group.place = f"update {self._num_updates + 1}"

    def _tell_all(self, notes: list[float]) -> Tensor:
        """Return what all processes tell, a row for each."""
        optimizer, world = self._optimizer, self._group.world
        own = [0.0] * _NUM_CHECKS
        own[_UPDATE] = float(self._num_updates)
        own[_DIGEST] = float(optimizer.digest_of_numbers())
        own[_COMMON_DIGEST] = float(digest_of_program(self._program, optimizer.digest_of_hyper()))
        own[_NORM] = self._squared_norm() if optimizer.clips else 0.0
        rows = torch.zeros(world.size, _NUM_CHECKS + len(notes), dtype=torch.float64)
        rows[world.rank] = torch.tensor([*own, *notes], dtype=torch.float64)
        # All other rows are zero: their sum has the digits of each.
        with span("collective", "norms and notes"):
            self._group.sum_(rows.view(-1), "fastest")
        return rows

    def _check(self, rows: Tensor) -> None:
        stages = self._options.num_stages
        for stage in range(stages):
            ranks = range(stage, len(rows), stages)
            require_same_update(list(ranks), rows[stage::stages, : _DIGEST + 1])
        both = rows[:, [_UPDATE, _COMMON_DIGEST]]
        require_same_update(list(range(len(rows))), both)

    def _squared_norm(self) -> float:
        """Return the square of the norm that the gradients of this stage have together."""
        options, total = self._options, 0.0
        unscale = 1.0 / self._optimizer.loss_scaling
        for dtype, buffer in self._sums.buffers.items():
            # Sums in half precision are means already.
            is_sum = options.reduction is Reduction.MEAN and dtype not in HALVES
            share = 1.0 / options.total_micro_batches_per_update if is_sum else 1.0
            wide = torch.float64 if dtype in (torch.float64, torch.complex128) else torch.float32
            real = as_real(buffer)
            norm = float(torch.linalg.vector_norm(real, dtype=wide))
            total += (norm * share * unscale) ** 2
        return total

    def _limit_norm(self, rows: Tensor) -> None:
        """Make the joint norm of all stages' gradients at most what the optimiser allows."""
        if not self._optimizer.clips:
            return
        stages, pipeline = self._options.num_stages, self._options.pipeline_id
        own = rows[pipeline * stages : (pipeline + 1) * stages, _NORM]
        norm = math.sqrt(float(own.sum()))
        factor = self._optimizer.max_grad_norm / (norm + 1e-6)
        # NaN limits nothing, as in torch: who looks at the loss sees it.
        if not factor >= 1.0:
            for buffer in self._sums.buffers.values():
                buffer.mul_(factor)
