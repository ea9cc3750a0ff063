"""The part of an optimiser's state that this process has; the others have the rest."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, final

import torch
from torch import Tensor

from torchkiln.checkpoints._divided import Recipients, hold_parts, holder_of, set_complete
from torchkiln.checkpoints._precision import warn_about_narrow_state
from torchkiln.core import OptimizerError
from torchkiln.distributed import Group
from torchkiln.runtime.optim._arrangement import Arrangement
from torchkiln.runtime.optim._division import Division, flat_memory
from torchkiln.runtime.optim._program_state import ProgramState
from torchkiln.torch_internals._optimizers import note_update
from torchkiln.torch_internals._tensors import version_of


@final
class DividedState(ProgramState):
    """State tensors of this process' part of each block.

    `optimizer.state` is empty but for what was gathered, or loaded, since the last update: whatever
    is there when the next one begins is cut into parts again.

    Args:
        optimizer: Whose state it is. What it has in every process becomes that of the parts.
        arrangement: The parameters, whole.
        division: How they are divided.
        group: The processes.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        arrangement: Arrangement,
        division: Division,
        group: Group,
    ) -> None:
        self._optimizer = optimizer
        self.arrangement = arrangement
        self.division = division
        self.steps = []
        # Whether the executable that it was made for is gone.
        self.is_released = False
        self._group = group
        self._by_block = [
            division.empty_state(index, arrangement.device) for index in range(len(division.blocks))
        ]
        # Whether there was an update, or state to begin with.
        self._has_values = False
        # What was gathered, with the number of writes to each tensor, and whether that is rank 0's
        # alone.
        self._shown: list[tuple[Tensor, int]] = []
        self._is_shown_alone = False
        self._adopt()

    @property
    def tensors(self) -> list[Tensor]:
        """The state as the executable takes it."""
        return [tensor for own in self._by_block for tensor in own.values()]

    def by_name(self) -> dict[str, dict[str, Tensor]]:
        """Return this process' part of the block that each parameter lies in."""
        names = self.arrangement.names
        places = {
            member: index
            for index, block in enumerate(self.division.blocks)
            for member in block.members
        }
        return {name: self._by_block[places[member]] for member, name in enumerate(names)}

    def snapshot(self) -> Callable[[], None]:
        """Copy the state, and return what puts it back."""
        kept = [(tensor, tensor.clone()) for tensor in self.tensors]
        steps, has_values = list(self.steps), self._has_values

        def restore() -> None:
            for tensor, value in kept:
                tensor.copy_(value)
            self.steps, self._has_values = list(steps), has_values
            self._tell()

        return restore

    # -- between updates --------------------------------------------------------------------

    def mark_stale(self) -> None:
        """Begin afresh if a state without values was loaded; others are found in the next call."""
        if not self._is_there():
            self._adopt()

    def follow_optimizer(self) -> None:
        """Cut into parts what was gathered or loaded since the last update.

        Raises:
            OptimizerError: It was gathered to rank 0 alone, and changed there.
        """
        is_there = self._is_there()
        versions = [(tensor, version_of(tensor)) for tensor, _ in self._shown]
        if self._is_shown_alone and (not is_there or versions != self._shown):
            raise OptimizerError(
                "the optimiser's state was changed after it was gathered to rank 0 alone, so the "
                'other ranks do not know of it; gather it to="all" and change it on all ranks'
            )
        if is_there or self._shown:
            self._adopt()

    def _is_there(self) -> bool:
        """Whether `optimizer.state` has anything."""
        state = self._optimizer.state
        return bool(state) and any(state.get(param) for param in self.arrangement.params)

    def count_update(self, reached: set[int] | None) -> None:
        """Count an update that was done; it reaches all parameters of the arrangement."""
        self.steps = [step + 1 for step in self.steps]
        if not self._has_values:
            self._has_values = True
            self._tell()
        note_update(self._optimizer)

    def move_to(self, optimizer: torch.optim.Optimizer) -> None:
        """Let another optimiser object own the state, unless it has some itself."""
        self._check_groups(optimizer)
        if holder_of(optimizer) not in (None, self):
            raise OptimizerError(
                "another program divides the state of the new optimiser; destroy() that one first, "
                "or make an optimiser of its own for each program"
            )
        # What was loaded into the one before is its state.
        self.follow_optimizer()
        hold_parts(self._optimizer, None)
        self._optimizer = optimizer
        self.follow_optimizer()
        self._tell()

    def follow_parameters(self, by_name: Mapping[str, Tensor]) -> None:
        """Belong to the parameters that the module has now."""
        self.follow_optimizer()
        self._arrange_for(by_name)

    # -- whole and in parts -----------------------------------------------------------------

    def gather(self, to: Recipients) -> None:
        """Show the whole state in `optimizer.state`, in torch's format, until the next update.

        Called by all processes.

        Args:
            to: "all" of them have it afterwards, or the "first" alone.
        """
        self.follow_optimizer()
        if not self._has_values or not self.tensors:
            return
        is_alone = to == "first"
        is_recipient = not is_alone or self._group.world.is_first
        params = self.arrangement.params
        whole: list[dict[str, Tensor]] = [{} for _ in params]
        for index, (block, parts) in enumerate(
            zip(self.division.blocks, self._by_block, strict=True)
        ):
            for name, part in parts.items():
                flats = {}
                for member in block.members if is_recipient else ():
                    made = torch.empty_like(params[member].detach(), dtype=part.dtype)
                    whole[member][name], flats[member] = made, flat_memory(made)
                for begin, rows in self._group.gather_parts(part):
                    self.division.put_together(index, begin, rows, flats)
        if is_recipient:
            self._show(whole)
            self._is_shown_alone = is_alone

    def _show(self, whole: list[dict[str, Tensor]]) -> None:
        """Let `optimizer.state` have the state of each parameter."""
        arrangement = self.arrangement
        for member, (param, own) in enumerate(zip(arrangement.params, whole, strict=True)):
            entry: dict[str, Any] = dict(own)
            if arrangement.rule(member).has_step:
                step = float(self.steps[arrangement.row_of(member)])
                entry = {"step": torch.tensor(step, device="cpu"), **entry}
            self._optimizer.state[param] = entry
        tensors = [t for own in whole for t in own.values()]
        self._shown = [(tensor, version_of(tensor)) for tensor in tensors]
        set_complete(self._optimizer, True)

    def _adopt(self) -> None:
        """Cut what is in `optimizer.state` into parts; what is not there starts afresh."""
        found = False
        narrow: set[str] = set()
        rank, division = self._group.world.rank, self.division
        with torch.no_grad():
            for index, own in enumerate(self._by_block):
                rule = division.of_parts.rule(index)
                for name, part in own.items():
                    part.fill_(rule.initial(name))
                    for member in division.blocks[index].members:
                        found |= self._loaded(member, name, part.dtype, narrow) is not None
                    for piece in division.pieces[index][rank]:
                        value = self._loaded(piece.member, name, part.dtype, narrow)
                        if value is not None:
                            flat = _in_order_of(self.arrangement.params[piece.member], value)
                            part[piece.place].copy_(flat[piece.begin : piece.end])
        if narrow:
            warn_about_narrow_state(narrow)
        self.steps = self._read_steps()
        self._has_values = found
        for param in self.arrangement.params:
            self._optimizer.state.pop(param, None)
        self._tell()

    def _tell(self) -> None:
        """Say where the state is, now that `optimizer.state` does not have it."""
        self._shown, self._is_shown_alone = [], False
        hold_parts(self._optimizer, self.gather)
        set_complete(self._optimizer, not (self._has_values and self.tensors))


def _in_order_of(param: Tensor, value: Tensor) -> Tensor:
    """Return the elements of `value` in the order of the parameter's memory."""
    if value.shape != param.shape or value.stride() != param.stride():
        value = torch.empty_like(param.detach(), dtype=value.dtype).copy_(value)
    return flat_memory(value)
