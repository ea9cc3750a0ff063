"""`Sharing`: gradient sums of an update, and what this process shares with others before it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, final

import torch
from torch import Tensor

from torchkiln.core import Options
from torchkiln.distributed import Group
from torchkiln.runtime.call._binding import Binding
from torchkiln.runtime.execute._agreement import Agreement
from torchkiln.runtime.execute._block_sums import BlockSums
from torchkiln.runtime.execute._built import Built
from torchkiln.runtime.execute._clocked import Run
from torchkiln.runtime.execute._divided_update import DividedUpdate
from torchkiln.runtime.execute._exchange import Exchange
from torchkiln.runtime.execute._gradient_sums import GradientSums
from torchkiln.runtime.execute._notes import Notes
from torchkiln.runtime.execute._staged_calls import SharedSums
from torchkiln.runtime.optim._binding import OptimizerBinding

# Each process tells whether its weights were changed between two calls.
_NUM_CHANGED = 1


@final
class Sharing(SharedSums):
    """Holds the sums of a training program, and adds up those of all processes.

    Args:
        optimizer: Whose parameters have sums.
        built: What fills them.
        device: Where they are.
        notes: What processes tell each other.
        group: The processes; None: this one trains alone.
        options: Of the program: how gradients are added up, and what each process updates.
        binding: The module's tensors.
    """

    def __init__(
        self,
        optimizer: OptimizerBinding,
        built: Built,
        device: torch.device,
        notes: Notes,
        group: Group | None,
        options: Options,
        binding: Binding,
    ) -> None:
        self._optimizer = optimizer
        self._executable = built.executable
        self._accumulates = "accumulate" in built.metadata.entries
        self._device = device
        self._notes = notes
        self._exchange = None if group is None else Exchange(group, options.reduction_order)
        self._options = options
        self._divided: DividedUpdate | None = None
        self._binding = binding
        self._agreement: Agreement | None = None
        if group is not None:
            self._agreement = Agreement(
                group, self._weights, self._common_state, self._common_by_name
            )
        # Whether what is done now will be undone, so that nobody need know of it.
        self._is_apart = False
        self.fit()

    def fit(self) -> None:
        """Make room for the sums and for as many notes as there are now."""
        division = self._optimizer.division
        if division is not None and self._exchange is not None:
            self._divided = DividedUpdate(
                self._optimizer, division, self._options, self._exchange, self._device
            )
            self._sums: GradientSums | BlockSums = self._divided.sums
            return
        forms = self._optimizer.sum_forms() if self._accumulates else []
        if self._exchange is None:
            self._sums = GradientSums(forms, self._device)
            return
        num_flags = 0 if self._executable.reached is None else len(forms)
        self._sums = GradientSums(
            forms,
            self._device,
            num_ranks=self._exchange.group.world.size,
            num_slots=self._exchange.num_slots(_NUM_CHANGED + num_flags + self._notes.count),
        )

    def _weights(self) -> list[Tensor]:
        return [bound.tensor for bound in self._binding.parameters]

    def _common_state(self) -> list[Tensor]:
        # Of divided state each process has another part.
        return [] if self._optimizer.division is not None else self._optimizer.state_tensors

    def _common_by_name(self) -> dict[str, Tensor]:
        """Return what must be the same in all processes."""
        weights = {bound.name: bound.tensor for bound in self._binding.parameters}
        if self._optimizer.division is not None:
            return weights
        states = self._optimizer.state_by_name().items()
        return weights | {f"{key} of {name}": t for name, own in states for key, t in own.items()}

    @property
    def sums(self) -> list[Tensor]:
        """The sum of each parameter's gradients; none if an update has one micro-batch."""
        return self._sums.views

    @property
    def wants_outputs(self) -> bool:
        """Whether `share` must be told what forward returned."""
        return self._notes.count > 0 and not self._is_apart

    @property
    def seconds(self) -> float:
        """Seconds that this process spent in collectives, waiting for the others included."""
        return 0.0 if self._exchange is None else self._exchange.seconds

    def go_apart(self) -> Callable[[], None]:
        """Share nothing from now on; the returned function ends that."""
        before, self._is_apart = self._is_apart, True

        def come_back() -> None:
            self._is_apart = before

        return come_back

    def begin_call(self) -> None:
        """Forget what processes told each other in the call before."""
        if not self._is_apart:
            self._notes.forget()
            if self._agreement is not None:
                self._agreement.begin_call()

    def end_call(self) -> None:
        """Take note that the weights are as this program left them."""
        if self._agreement is not None and not self._is_apart:
            self._agreement.end_call()

    def clear_(self) -> None:
        """Forget what was summed up."""
        self._sums.clear_()

    def share(self, outputs: list[Any]) -> None:
        """Replace the sums by those of all processes, and let all know what each of them notes.

        Args:
            outputs: What forward returned for each micro-batch, if that is wanted.

        Raises:
            DistributedError: A process is missing, or is at another update.
        """
        if self._is_apart:
            if self._divided is not None:
                self._divided.measure_alone()
            return
        if self._exchange is None or self._agreement is None:
            self.note(outputs)
            return
        changed = float(self._agreement.is_changed)
        digest = self._agreement.digest(self._optimizer.digest_of_numbers())
        if self._divided is not None:
            rows = self._divided.share(digest, [changed, *self._notes.written(outputs)])
            self._agreement.settle(rows[:, 0].bool().tolist())
            self._notes.hear(rows[:, _NUM_CHANGED:])
            return
        assert isinstance(self._sums, GradientSums)
        reached = self._executable.reached
        # Plain Python finds out as it goes which parameters have gradients: perhaps others here
        # than there. But an update must change the same ones everywhere.
        members = range(0 if reached is None else len(self.sums))
        flags = [float(member in (reached or ())) for member in members]
        told = [changed, *flags, *self._notes.written(outputs)]
        rows = self._exchange.sum_(self._sums, digest, told)
        self._agreement.settle(rows[:, 0].bool().tolist())
        rows = rows[:, _NUM_CHANGED:]
        if reached is not None:
            reached.update(m for m in members if bool(rows[:, m].any()))
        self._notes.hear(rows[:, len(members) :])

    def update(self, run: Run, tables: list[Tensor]) -> None:
        if self._divided is not None:
            self._divided.update(run, tables, is_apart=self._is_apart)
            return
        optimizer = self._optimizer
        run([*optimizer.params, *self.sums, *optimizer.state_tensors, *tables])

    def note(self, outputs: list[Any]) -> None:
        """Take down notes about an update that no other process takes part in."""
        if self.wants_outputs:
            self._notes.hear(torch.tensor([self._notes.written(outputs)]))
