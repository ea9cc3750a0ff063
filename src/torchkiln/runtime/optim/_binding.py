"""The optimiser of a program: the one owner of its recipe, its numbers and its state."""

from __future__ import annotations

import dataclasses
import weakref
import zlib
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from torchkiln.checkpoints._divided import (
    gather_optimizer_state,
    hold_parts,
    holder_of,
    require_complete,
)
from torchkiln.checkpoints._precision import keep_state_precision
from torchkiln.core import OptimizerError
from torchkiln.distributed import Group
from torchkiln.runtime.call._binding import Binding
from torchkiln.runtime.optim._arrangement import Arrangement, Row, arrange
from torchkiln.runtime.optim._divided_state import DividedState
from torchkiln.runtime.optim._division import Division, divide
from torchkiln.runtime.optim._hyper import Hyper, read_hyper
from torchkiln.runtime.optim._program_state import ProgramState
from torchkiln.runtime.optim._recipe import Recipe, read_recipe
from torchkiln.runtime.optim._state import OptimizerState
from torchkiln.runtime.optim._tables import HyperTables


class OptimizerBinding:
    """A torch optimiser in the service of one program, as long as the program lives.

    Numbers (learning rate, ...) are those of when the program was made; later edits wait for
    `replace`, or come with `optimizer.load_state_dict`. State exists while a program is compiled.
    """

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer = optimizer
        self._recipe = read_recipe(optimizer)
        self._hyper = read_hyper(optimizer)
        self._digested: tuple[Hyper, int] | None = None
        self._state: ProgramState | None = None
        # Parts that outlive the executable: without them the state would be lost.
        self._left: DividedState | None = None
        self._tables: HyperTables | None = None
        self._group_sizes: list[int] = []
        self._rows: tuple[Row, ...] | None = None
        self._watch()

    def _watch(self) -> None:
        """Notice `optimizer.load_state_dict`: it brings state, and numbers such as the rate."""
        keep_state_precision(self.optimizer)
        reference = weakref.ref(self)

        def loaded(changed: torch.optim.Optimizer) -> None:
            owner = reference()
            if owner is None or owner.optimizer is not changed:
                return
            owner._hyper = read_hyper(changed)
            if owner._state is not None:
                owner._state.mark_stale()

        self.optimizer.register_load_state_dict_post_hook(loaded)

    # -- building ---------------------------------------------------------------------------

    def arrange(self, binding: Binding) -> Arrangement:
        """Return what a step for this module would update; nothing changes here."""
        return arrange(self.optimizer, binding)

    def arrange_as_compiled(self, binding: Binding) -> Arrangement:
        """Return what the executable updates, in its rows; without one, what it would update.

        Step counts differ as soon as it ran, if no gradient reaches some parameters. They would get
        rows of their own today, which is another step than the one that was compiled.
        """
        now = self.arrange(binding)
        return now if self._rows is None else dataclasses.replace(now, rows=self._rows)

    def install(
        self,
        arrangement: Arrangement,
        updated: list[str],
        num_parts: int = 1,
        group: Group | None = None,
    ) -> None:
        """Make the state for an executable that updates the named parameters.

        Args:
            arrangement: Of the parameters of the optimiser.
            updated: Names of those that the executable updates.
            num_parts: Into which their state is divided.
            group: The processes that have the parts.
        """
        if arrangement.recipe != self._recipe:
            self._recipe, self._hyper = arrangement.recipe, read_hyper(self.optimizer)
        chosen = arrangement.select(updated)
        require_complete(self.optimizer, "another program with this optimiser")
        if num_parts > 1:
            assert group is not None, "there is nobody to have the other parts"
            division = divide(chosen, num_parts)
            self._state = DividedState(self.optimizer, chosen, division, group)
        else:
            hold_parts(self.optimizer, None)
            self._state = OptimizerState(self.optimizer, chosen)
        self._left = None
        self._tables = HyperTables(chosen)
        self._group_sizes = self._sizes_now()
        self._rows = arrangement.rows

    def release(self) -> None:
        """Let go of the state; what the optimiser shows of it stays."""
        if isinstance(self._state, DividedState):
            self._state.is_released = True
            self._left = self._state
        self._state = self._tables = self._rows = None

    # -- running ----------------------------------------------------------------------------

    @property
    def _installed(self) -> ProgramState:
        assert self._state is not None, "the program is not compiled"
        return self._state

    @property
    def params(self) -> list[Tensor]:
        """The parameters that an update changes."""
        return self._installed.arrangement.params

    @property
    def state_tensors(self) -> list[Tensor]:
        """The state as the executable takes it."""
        return self._installed.tensors

    @property
    def division(self) -> Division | None:
        """How the state is divided among processes; None: this one has all of it."""
        state = self._state
        return state.division if isinstance(state, DividedState) else None

    @property
    def recipe(self) -> Recipe:
        """What of the optimiser is compiled in."""
        return self._recipe

    def sum_forms(self) -> list[Tensor]:
        """Return the sum of each parameter's gradients as a tensor without memory."""
        arrangement = self._installed.arrangement
        return [arrangement.empty_sum(param, "meta") for param in arrangement.params]

    def state_by_name(self) -> dict[str, dict[str, Tensor]]:
        """Return the state tensors of each parameter."""
        return self._installed.by_name()

    def begin_call(self) -> None:
        """Take over what happened to the optimiser between calls.

        Raises:
            OptimizerError: if its groups are others than those that were compiled.
        """
        sizes = self._sizes_now()
        if sizes != self._group_sizes:
            raise OptimizerError(
                f"the optimiser's groups changed from {self._group_sizes} to {sizes} parameters "
                "after compilation; call destroy() on the program to compile again"
            )
        self._installed.follow_optimizer()

    def _sizes_now(self) -> list[int]:
        return [len(group["params"]) for group in self.optimizer.param_groups]

    def follow_parameters(self, by_name: Mapping[str, Tensor]) -> None:
        """Belong to the parameters that the module has now."""
        self._installed.follow_parameters(by_name)

    def next_tables(self, num_updates: int, num_micro_batches: int = 1) -> list[list[Tensor]]:
        """Return, for each of the next updates, the tables that the program takes as inputs.

        Args:
            num_updates: How many to look ahead.
            num_micro_batches: How many share an update, in all replicas and processes.
        """
        assert self._tables is not None
        steps = self._installed.steps
        return self._tables.upcoming(self._hyper, steps, num_updates, num_micro_batches)

    @property
    def clips(self) -> bool:
        """Whether the joint norm of gradients is limited."""
        return self._recipe.clips

    @property
    def max_grad_norm(self) -> float:
        """The limit of the joint norm of gradients."""
        return self._hyper.max_grad_norm

    @property
    def loss_scaling(self) -> float:
        """What the loss is multiplied with."""
        return self._hyper.loss_scaling if self._compiled_recipe.scales_loss else 1.0

    @property
    def is_compiled_without_scale(self) -> bool:
        """Whether the executable cannot multiply the loss with what the optimiser asks for."""
        return self._hyper.loss_scaling != 1.0 and not self._compiled_recipe.scales_loss

    @property
    def _compiled_recipe(self) -> Recipe:
        return self._recipe if self._state is None else self._state.arrangement.recipe

    def digest_of_hyper(self) -> int:
        """Return what is the same in processes that update with the same hyper-parameters."""
        if self._digested is None or self._digested[0] is not self._hyper:
            hyper = self._hyper
            groups = [sorted(_comparable(numbers).items()) for numbers in hyper.groups]
            told = repr((groups, hyper.max_grad_norm, hyper.loss_scaling))
            self._digested = (hyper, zlib.crc32(told.encode()))
        return self._digested[1]

    def digest_of_numbers(self) -> int:
        """Return what is the same in processes that do the next update with the same numbers."""
        return zlib.crc32(repr(self._installed.steps).encode(), self.digest_of_hyper())

    def count_update(self, reached: set[int] | None) -> None:
        """Count an update; `reached` are the parameters that had a gradient so far, None: all."""
        self._installed.count_update(reached)

    def snapshot(self) -> Callable[[], None]:
        """Copy state and counts, and return what puts them back."""
        return self._installed.snapshot()

    # -- several processes ------------------------------------------------------------------

    def gather_what_was_divided(self) -> None:
        """Make state whole that a program before divided, so that another one can take it over.

        Called by all processes.

        Raises:
            OptimizerError: That program is still in use.
        """
        holder = holder_of(self.optimizer)
        if isinstance(holder, DividedState) and not holder.is_released:
            raise OptimizerError(
                "another program divides the state of this optimiser (shard_optimizer=True); "
                "destroy() that one first, or make an optimiser for each program"
            )
        gather_optimizer_state(self.optimizer)

    def group_of_parameters(self) -> dict[int, int]:
        """Return the group of each parameter that the optimiser holds, by its id."""
        groups = enumerate(self.optimizer.param_groups)
        return {id(param): index for index, group in groups for param in group["params"]}

    def describe(self) -> dict[str, str]:
        """Return structure and numbers, by names for people."""
        recipe, hyper = self._recipe, self._hyper
        told = {
            "optimiser": recipe.kind,
            "dtypes of its state": str(recipe.state_dtypes.halved),
            "max_grad_norm": str(hyper.max_grad_norm),
            "loss_scaling": str(hyper.loss_scaling),
            "parameters by group": str(self._sizes_now()),
        }
        for index, (rule, numbers) in enumerate(zip(recipe.rules, hyper.groups, strict=True)):
            told[f"rule of group {index}"] = str(rule)
            told |= {
                f"{name} of group {index}": str(value)
                for name, value in _comparable(numbers).items()
            }
        return told

    # -- another optimiser ------------------------------------------------------------------

    def replace(self, optimizer: torch.optim.Optimizer) -> None:
        """Use the optimiser's present numbers from the next call on.

        Raises:
            OptimizerError: if its structure is not the one that was compiled.
        """
        if not isinstance(optimizer, torch.optim.Optimizer):
            raise OptimizerError(
                f"expected a torch optimiser, got {type(optimizer).__name__}; use one of SGD, "
                "Adam, AdamW, RMSprop or LAMB"
            )
        recipe, hyper = read_recipe(optimizer), read_hyper(optimizer)
        is_other = optimizer is not self.optimizer
        if self._state is not None:
            self._state.arrangement.recipe.check_replacement(recipe)
            if is_other:
                self._state.move_to(optimizer)
        self.optimizer, self._recipe, self._hyper = optimizer, recipe, hyper
        if is_other:
            self._watch()


def _comparable(numbers: Mapping[str, Any]) -> dict[str, Any]:
    """Return what of a group can be compared: objects say where they are, which always differs."""
    return {
        name: value
        for name, value in numbers.items()
        if isinstance(value, bool | int | float | str | tuple | None)
    }
