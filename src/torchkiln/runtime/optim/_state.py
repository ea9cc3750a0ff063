"""The state tensors of an optimiser: the program's memory, shown in `optimizer.state`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, final

import torch
from torch import Tensor

from torchkiln.checkpoints._divided import require_complete
from torchkiln.checkpoints._precision import warn_about_narrow_state
from torchkiln.runtime.optim._arrangement import Arrangement
from torchkiln.runtime.optim._program_state import ProgramState
from torchkiln.torch_internals._optimizers import note_update


@final
class OptimizerState(ProgramState):
    """State tensors of the parameters that a program updates, live in `optimizer.state`."""

    def __init__(self, optimizer: torch.optim.Optimizer, arrangement: Arrangement) -> None:
        """Make the state tensors, from the optimiser's own where it has some."""
        self._optimizer = optimizer
        self.arrangement = arrangement
        self.by_member = [
            arrangement.empty_state(member, param)
            for member, param in enumerate(arrangement.params)
        ]
        self.steps = []
        # How many updates each parameter has seen.
        self._counts: Tensor | None = None
        # Members that no gradient reaches: they have no state, as in torch.
        self._unreached: set[int] = set()
        self._published = False
        self._num_published = 0
        self._is_stale = False
        self._adopt()

    @property
    def tensors(self) -> list[Tensor]:
        """The state as the executable takes it."""
        return [tensor for own in self.by_member for tensor in own.values()]

    def by_name(self) -> dict[str, dict[str, Tensor]]:
        """Return the state tensors of each parameter."""
        return dict(zip(self.arrangement.names, self.by_member, strict=True))

    def snapshot(self) -> Callable[[], None]:
        """Copy the state, and return what puts it back, also if none was shown yet."""
        kept = [(tensor, tensor.clone()) for tensor in self.tensors]
        steps, unreached, shown = list(self.steps), set(self._unreached), self._published
        owners = set(self._optimizer.state)

        def restore() -> None:
            for tensor, value in kept:
                tensor.copy_(value)
            self.steps, self._unreached = list(steps), set(unreached)
            if self._counts is not None:
                rows = [self.arrangement.row_of(m) for m in range(len(self.arrangement.params))]
                self._counts.copy_(torch.tensor([float(steps[row]) for row in rows]))
            if not shown:
                for param in set(self._optimizer.state) - owners:
                    del self._optimizer.state[param]
                self._published, self._counts = False, None

        return restore

    def mark_stale(self) -> None:
        """Take new values from `optimizer.state` before the next update."""
        self._is_stale = True

    def follow_optimizer(self) -> None:
        """Take over what somebody else did to `optimizer.state` since the last update."""
        if self._changed_outside():
            self._adopt()

    def _changed_outside(self) -> bool:
        """Whether `optimizer.state` is no longer what was left there.

        `load_state_dict`, another program, plain `optimizer.step()` or clearing the state do that.
        One parameter tells for all: everybody changes them together.
        """
        params, kept = self.arrangement.params, self._optimizer.state
        if self._published and len(kept) < self._num_published:
            return True
        member = next((m for m in range(len(params)) if m not in self._unreached), None)
        if self._is_stale or member is None:
            return self._is_stale
        if not self._published:
            return bool(kept.get(params[member]))
        if self._counts is not None:
            counted = self._counts.numpy()[member]
            if counted != self.steps[self.arrangement.row_of(member)]:
                return True
        shown = kept.get(params[member]) or {}
        return any(shown.get(name) is not tensor for name, tensor in self.by_member[member].items())

    def _adopt(self) -> None:
        """Copy values from `optimizer.state`; what is not there starts afresh."""
        require_complete(self._optimizer, "this program")
        found = False
        narrow: set[str] = set()
        for member, own in enumerate(self.by_member):
            for name, tensor in own.items():
                value = self._loaded(member, name, tensor.dtype, narrow)
                if value is None:
                    tensor.fill_(self.arrangement.rule(member).initial(name))
                    continue
                found = True
                if value is not tensor:
                    tensor.copy_(value)
        if narrow:
            warn_about_narrow_state(narrow)
        self.steps = self._read_steps()
        self._is_stale = False
        self._published = False
        if found:
            self._publish()

    def _publish(self) -> None:
        """Show the state in `optimizer.state` in torch's format; it stays current from here on."""
        arrangement = self.arrangement
        members = range(len(arrangement.params))
        if any(arrangement.rule(member).has_step for member in members):
            # One vector, one view per parameter: counting costs one operation for all.
            counts = [float(self.steps[arrangement.row_of(member)]) for member in members]
            self._counts = torch.tensor(counts, device="cpu")
        for member, (param, own) in enumerate(zip(arrangement.params, self.by_member, strict=True)):
            entry: dict[str, Any] = dict(own)
            if arrangement.rule(member).has_step and self._counts is not None:
                entry = {"step": self._counts[member], **entry}
            if entry and member not in self._unreached:
                self._optimizer.state[param] = entry
        self._published = True
        self._num_published = len(self._optimizer.state)

    def count_update(self, reached: set[int] | None) -> None:
        """Count an update that was done.

        Args:
            reached: Positions of the parameters that a gradient reached so far; None: all of them.
        """
        if reached is not None:
            self._unreached = set(range(len(self.arrangement.params))) - reached
        self.steps = [step + 1 for step in self.steps]
        if self._counts is not None:
            # By NumPy, like the look at it: a call of torch costs ten times as much.
            numbers = self._counts.numpy()
            numbers += 1
        if not self._published:
            self._publish()
        note_update(self._optimizer)

    def move_to(self, optimizer: torch.optim.Optimizer) -> None:
        """Let another optimiser object own the state, unless it has some itself.

        Raises:
            OptimizerError: if it does not hold the same parameters in the same groups.
        """
        arrangement = self.arrangement
        self._check_groups(optimizer)
        has_own = any(optimizer.state.get(param) for param in arrangement.params)
        for param in arrangement.params:
            # The one before keeps a copy: two owners of one tensor would spoil each other's state.
            state = self._optimizer.state.get(param) or {}
            for name, value in state.items():
                if isinstance(value, Tensor):
                    state[name] = value.clone()
        self._optimizer = optimizer
        if has_own:
            self._adopt()
        elif self._published:
            self._publish()

    def follow_parameters(self, by_name: Mapping[str, Tensor]) -> None:
        """Belong to the parameters that the module has now.

        Raises:
            ExecutableError: if the optimiser does not hold one of them.
        """
        self._arrange_for(by_name)
        if self._published:
            self._publish()
