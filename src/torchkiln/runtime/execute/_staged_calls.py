"""What an executor does differently if other processes run parts of each micro-batch with it."""

from __future__ import annotations

import abc
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager
from typing import Any

from torch import Tensor

from torchkiln.runtime.execute._clocked import Run
from torchkiln.runtime.execute._notes import Notes
from torchkiln.runtime.optim._binding import OptimizerBinding


class SharedSums(abc.ABC):
    """The gradient sums of this process, and what it shares with others before an update."""

    @abc.abstractmethod
    def fit(self) -> None:
        """Make room for the sums and for as many notes as there are now."""

    @property
    @abc.abstractmethod
    def sums(self) -> list[Tensor]:
        """The sum of each parameter's gradients; none if an update has one micro-batch."""

    @property
    @abc.abstractmethod
    def wants_outputs(self) -> bool:
        """Whether `share` must be told what forward returned."""

    @property
    @abc.abstractmethod
    def seconds(self) -> float:
        """Seconds that this process spent in collectives, waiting for the others included."""

    @abc.abstractmethod
    def go_apart(self) -> Callable[[], None]:
        """Share nothing from now on; the returned function ends that."""

    @abc.abstractmethod
    def begin_call(self) -> None:
        """Forget what processes told each other in the call before."""

    @abc.abstractmethod
    def end_call(self) -> None:
        """Take note that the weights are as this program left them."""

    @abc.abstractmethod
    def clear_(self) -> None:
        """Forget what was summed up."""

    @abc.abstractmethod
    def share(self, outputs: list[Any]) -> None:
        """Replace the sums by those of all processes, and let all know what each of them notes."""

    @abc.abstractmethod
    def update(self, run: Run, tables: list[Tensor]) -> None:
        """Change the parameters by the sums, which are zero afterwards.

        Args:
            run: The update of the executable.
            tables: The numbers of the update.
        """

    @abc.abstractmethod
    def note(self, outputs: list[Any]) -> None:
        """Take down notes about an update that no other process takes part in."""


class StagedCalls(abc.ABC):
    """Runs micro-batches together with the processes that have the other stages.

    Implemented in the room `pipeline`, which knows how a step was cut.
    """

    @abc.abstractmethod
    def make_sums(self, optimizer: OptimizerBinding, notes: Notes) -> SharedSums:
        """Return the gradient sums of this stage."""

    @abc.abstractmethod
    def calling(self, tensors: Sequence[Tensor]) -> AbstractContextManager[None]:
        """Be in a call with these arguments, which must be the same in all stages."""

    @abc.abstractmethod
    def infer(self, bound: Sequence[Tensor], batches: Sequence[Sequence[Tensor]]) -> list[Any]:
        """Return the outputs of all micro-batches, the same in all stages.

        Args:
            bound: The module's tensors of this stage.
            batches: The micro-batches.
        """

    @abc.abstractmethod
    def accumulate(
        self,
        bound: Sequence[Tensor],
        sums: Sequence[Tensor],
        scalars: Tensor,
        batches: Sequence[Sequence[Tensor]],
        wanted: Collection[int],
    ) -> list[list[Tensor]]:
        """Add the gradients of all micro-batches of an update to the sums.

        Args:
            bound: The module's tensors of this stage.
            sums: Of its parameters.
            scalars: The table that all parameters share.
            batches: The micro-batches.
            wanted: Numbers of those whose outputs are wanted; others have none in the result.
        """
