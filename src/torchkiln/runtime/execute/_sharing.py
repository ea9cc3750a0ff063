"""`Sharing`: gradient sums of an update, and what this process shares with others before it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, final

import torch
from torch import Tensor

from torchkiln.core import ReductionOrder
from torchkiln.distributed import Group
from torchkiln.runtime.execute._built import Built
from torchkiln.runtime.execute._exchange import Exchange
from torchkiln.runtime.execute._gradient_sums import GradientSums
from torchkiln.runtime.execute._notes import Notes
from torchkiln.runtime.execute._staged_calls import SharedSums
from torchkiln.runtime.optim._binding import OptimizerBinding


@final
class Sharing(SharedSums):
    """Holds the sums of a training program, and adds up those of all processes.

    Args:
        optimizer: Whose parameters have sums.
        built: What fills them.
        device: Where they are.
        notes: What processes tell each other.
        group: The processes; None: this one trains alone.
        order: In which order sums of processes are added.
    """

    def __init__(
        self,
        optimizer: OptimizerBinding,
        built: Built,
        device: torch.device,
        notes: Notes,
        group: Group | None,
        order: ReductionOrder,
    ) -> None:
        self._optimizer = optimizer
        self._executable = built.executable
        self._accumulates = "accumulate" in built.metadata.entries
        self._device = device
        self._notes = notes
        self._exchange = None if group is None else Exchange(group, order)
        # Whether what is done now will be undone, so that nobody need know of it.
        self._is_apart = False
        self.fit()

    def fit(self) -> None:
        """Make room for the sums and for as many notes as there are now."""
        forms = self._optimizer.sum_forms() if self._accumulates else []
        if self._exchange is None:
            self._sums = GradientSums(forms, self._device)
            return
        num_flags = 0 if self._executable.reached is None else len(forms)
        self._sums = GradientSums(
            forms,
            self._device,
            num_ranks=self._exchange.group.world.size,
            num_slots=self._exchange.num_slots(num_flags + self._notes.count),
        )

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
            return
        if self._exchange is None:
            self.note(outputs)
            return
        reached = self._executable.reached
        # Plain Python finds out as it goes which parameters have gradients: perhaps others here
        # than there. But an update must change the same ones everywhere.
        members = range(0 if reached is None else len(self.sums))
        told = [float(member in (reached or ())) for member in members]
        told += self._notes.written(outputs)
        rows = self._exchange.sum_(self._sums, self._optimizer.digest_of_numbers(), told)
        if reached is not None:
            reached.update(m for m in members if bool(rows[:, m].any()))
        self._notes.hear(rows[:, len(members) :])

    def note(self, outputs: list[Any]) -> None:
        """Take down notes about an update that no other process takes part in."""
        if self.wants_outputs:
            self._notes.hear(torch.tensor([self._notes.written(outputs)]))
