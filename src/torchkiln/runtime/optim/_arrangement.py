"""Which parameters an update changes, by which rules, and in which form it takes their state."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from torchkiln.core import CaptureError, OptimizerError, warn_user
from torchkiln.runtime.call._binding import Binding
from torchkiln.runtime.optim._hyper import plain_number
from torchkiln.runtime.optim._recipe import Recipe, read_recipe
from torchkiln.runtime.optim._state_dtypes import SUMS
from torchkiln.runtime.optim._update_rules import UpdateRule
from torchkiln.torch_internals._tensors import has_gradient_hooks


@dataclass(frozen=True, slots=True)
class Row:
    """Parameters that share their scalars: one group, one dtype, one step count."""

    group: int
    dtype: torch.dtype
    members: tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Arrangement:
    """The parameters that an update changes, in the order of its inputs, in rows of its tables."""

    recipe: Recipe
    params: list[Tensor]
    names: list[str]
    rows: tuple[Row, ...]
    # Ids of everything that the optimiser holds, whether the module has it or not.
    held: frozenset[int]

    def rule(self, member: int) -> UpdateRule:
        """Return how the parameter at a position is changed."""
        return self.recipe.rules[self.rows[self.row_of(member)].group]

    def row_of(self, member: int) -> int:
        """Return the row of tables that the parameter at a position takes its scalars from."""
        return next(i for i, row in enumerate(self.rows) if member in row.members)

    @property
    def device(self) -> torch.device:
        """Where the parameters are."""
        return self.params[0].device if self.params else torch.device("cpu")

    def dtypes(self) -> list[torch.dtype]:
        """Return the compute dtypes in use, one hyper-parameter table each."""
        return sorted({row.dtype for row in self.rows}, key=str)

    def select(self, names: list[str]) -> Arrangement:
        """Return the arrangement of the named parameters only; rows keep their places."""
        kept = [member for member, name in enumerate(self.names) if name in set(names)]
        moved = {member: index for index, member in enumerate(kept)}
        rows = tuple(
            Row(row.group, row.dtype, tuple(moved[m] for m in row.members if m in moved))
            for row in self.rows
        )
        params = [self.params[member] for member in kept]
        own_names = [self.names[member] for member in kept]
        return Arrangement(self.recipe, params, own_names, rows, self.held)

    def empty_state(self, member: int, param: Tensor) -> dict[str, Tensor]:
        """Return memory for the state of a member that has the form of `param`."""
        dtypes = self.recipe.state_dtypes
        return {
            name: torch.empty_like(param.detach(), dtype=dtypes.of(name, param))
            for name in self.rule(member).state_names
        }

    def empty_sum(self, param: Tensor, device: str | None = None) -> Tensor:
        """Return memory for the sum of a parameter's gradients; None: where the parameter is."""
        dtype = self.recipe.state_dtypes.of(SUMS, param)
        return torch.empty_like(param.detach(), dtype=dtype, device=device)


def arrange(optimizer: torch.optim.Optimizer, binding: Binding) -> Arrangement:
    """Arrange the module's trainable parameters by the optimiser's groups.

    Parameters that are in no group are left out: torch would not update them either. If all that it
    holds are frozen, nothing is arranged.

    Raises:
        CaptureError: if the optimiser should train something that is a constant of the program.
        OptimizerError: if it holds none of the parameters, or its maths is not known here.
    """
    groups = enumerate(optimizer.param_groups)
    group_of = {id(param): index for index, group in groups for param in group["params"]}
    for bound in binding.attributes:
        if id(bound.tensor) in group_of:
            raise CaptureError(
                f"the optimiser should train {bound.name!r}, which is a plain attribute and so "
                "a constant; make it an nn.Parameter, lists of them an nn.ParameterList"
            )
    recipe = read_recipe(optimizer)
    chosen = [bound for bound in binding.parameters if bound.tensor.requires_grad]
    for bound in chosen:
        _check_parameter(recipe, bound.tensor, bound.name)
    chosen = [bound for bound in chosen if id(bound.tensor) in group_of]
    if not any(id(bound.tensor) in group_of for bound in binding.parameters):
        raise OptimizerError(
            "the optimiser holds no parameter of the module; build it from module.parameters() of "
            "the same module"
        )
    params = [bound.tensor for bound in chosen]
    rows: dict[tuple[int, torch.dtype, int], list[int]] = {}
    for member, (param, step) in enumerate(zip(params, read_steps(optimizer, params), strict=True)):
        key = (group_of[id(param)], _compute_dtype(param), step)
        rows.setdefault(key, []).append(member)
    arranged = tuple(Row(group, dtype, tuple(own)) for (group, dtype, _), own in rows.items())
    names = [bound.name for bound in chosen]
    return Arrangement(recipe, params, names, arranged, frozenset(group_of))


def _check_parameter(recipe: Recipe, param: Tensor, name: str) -> None:
    if param.is_complex() and recipe.kind != "SGD":
        raise OptimizerError(
            f"{name!r} is complex, which the compiled {recipe.kind} does not support; use SGD, "
            "or keep real and imaginary parts as two parameters"
        )
    if has_gradient_hooks(param):
        warn_user(
            f"{name!r} has gradient hooks, which a program does not execute; change the "
            "gradient inside forward, or use max_grad_norm for clipping"
        )


def _compute_dtype(param: Tensor) -> torch.dtype:
    return torch.float64 if param.dtype == torch.float64 else torch.float32


def read_steps(optimizer: torch.optim.Optimizer, params: list[Tensor]) -> list[int]:
    """Return how many updates each parameter has seen (for SGD: whether it saw one)."""
    steps = []
    for param in params:
        state = optimizer.state.get(param) or {}
        step = state.get("step")
        if step is None:
            steps.append(1 if isinstance(state.get("momentum_buffer"), Tensor) else 0)
        else:
            steps.append(int(plain_number(step)))
    return steps
