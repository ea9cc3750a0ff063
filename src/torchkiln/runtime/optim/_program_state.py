"""`ProgramState`: the state tensors of an optimiser, owned by a program."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from torchkiln.core import ExecutableError, OptimizerError
from torchkiln.runtime.optim._arrangement import Arrangement, read_steps
from torchkiln.runtime.optim._state_dtypes import HALVES


class ProgramState(abc.ABC):
    """State of the parameters that a program updates, in memory that the executable writes to."""

    arrangement: Arrangement
    # How many updates each row of the arrangement has seen.
    steps: list[int]
    _optimizer: torch.optim.Optimizer

    @property
    @abc.abstractmethod
    def tensors(self) -> list[Tensor]:
        """The state as the executable takes it."""

    @abc.abstractmethod
    def by_name(self) -> dict[str, dict[str, Tensor]]:
        """Return tensors with the dtypes of each parameter's state, by the parameter's name."""

    @abc.abstractmethod
    def snapshot(self) -> Callable[[], None]:
        """Copy the state, and return what puts it back, also if none was shown yet."""

    @abc.abstractmethod
    def mark_stale(self) -> None:
        """Take new values from `optimizer.state` before the next update."""

    @abc.abstractmethod
    def follow_optimizer(self) -> None:
        """Take over what somebody else did to `optimizer.state` since the last update."""

    @abc.abstractmethod
    def count_update(self, reached: set[int] | None) -> None:
        """Count an update that was done.

        Args:
            reached: Positions of the parameters that a gradient reached so far; None: all of them.
        """

    @abc.abstractmethod
    def move_to(self, optimizer: torch.optim.Optimizer) -> None:
        """Let another optimiser object own the state, unless it has some itself.

        Raises:
            OptimizerError: if it does not hold the same parameters in the same groups.
        """

    @abc.abstractmethod
    def follow_parameters(self, by_name: Mapping[str, Tensor]) -> None:
        """Belong to the parameters that the module has now.

        Raises:
            ExecutableError: if the optimiser does not hold one of them.
        """

    # -- for those that implement it --------------------------------------------------------

    def _loaded(
        self, member: int, name: str, dtype: torch.dtype, narrow: set[str]
    ) -> Tensor | None:
        """Return what `optimizer.state` has of a member's state; None: nothing.

        Args:
            member: Whose state it is.
            name: Of the state.
            dtype: In which it will be kept; half precision that becomes wide is put into `narrow`.
            narrow: Names and dtypes that a warning will tell.
        """
        state = self._optimizer.state.get(self.arrangement.params[member]) or {}
        value = state.get(name)
        if not isinstance(value, Tensor):
            return None
        if value.is_meta:
            raise OptimizerError(
                f"{name} of {self.arrangement.names[member]!r} in the optimiser's state is "
                "a meta tensor, which has no values; load a state with values"
            )
        if value.dtype in HALVES and dtype not in HALVES:
            narrow.add(f"{name} ({value.dtype})")
        return value

    def _read_steps(self) -> list[int]:
        """Return how many updates each row has seen by the optimiser's own count."""
        counted = read_steps(self._optimizer, self.arrangement.params)
        steps = []
        for row in self.arrangement.rows:
            values = {counted[member] for member in row.members}
            if len(values) > 1:
                raise OptimizerError(
                    f"the loaded optimiser state has different step counts {sorted(values)} within "
                    f"group {row.group}; call destroy() on the program so that it compiles for them"
                )
            steps.append(values.pop() if values else 0)
        return steps

    def _check_groups(self, optimizer: torch.optim.Optimizer) -> None:
        """Raise OptimizerError if an optimiser does not hold the same parameters in groups."""
        arrangement = self.arrangement
        groups = enumerate(optimizer.param_groups)
        group_of = {id(param): index for index, group in groups for param in group["params"]}
        for row in arrangement.rows:
            for member in row.members:
                if group_of.get(id(arrangement.params[member])) != row.group:
                    raise OptimizerError(
                        f"the new optimiser does not hold {arrangement.names[member]!r} in group "
                        f"{row.group}; build it from the parameters of the same module, in the "
                        "same groups"
                    )

    def _arrange_for(self, by_name: Mapping[str, Tensor]) -> None:
        """Arrange the parameters that the module has now, which the optimiser must hold."""
        held = {id(p) for group in self._optimizer.param_groups for p in group["params"]}
        for name in self.arrangement.names:
            if id(by_name[name]) not in held:
                raise ExecutableError(
                    f"parameter {name!r} was replaced by another object, but the optimiser still "
                    "holds the old one; load with assign=False, or make a new optimiser and program"
                )
        params = [by_name[name] for name in self.arrangement.names]
        self.arrangement = dataclasses.replace(self.arrangement, params=params)
