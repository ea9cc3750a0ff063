"""From a torch optimiser to update rules, hyper-parameter tables and state tensors."""

from __future__ import annotations

import dataclasses
import inspect
import math
import weakref
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from torch import Tensor

from torchkiln.checkpoints._precision import has_foreign_step_hooks, warn_about_narrow_state
from torchkiln.core import CaptureError, OptimizerError, warn_user
from torchkiln.runtime.call._binding import Binding
from torchkiln.runtime.optim._lamb import LAMB
from torchkiln.runtime.optim._state_dtypes import HALVES, SUMS, StateDtypes, read_state_dtypes
from torchkiln.runtime.optim._update_rules import (
    AdamRule,
    LAMBRule,
    RMSpropRule,
    SGDRule,
    UpdateRule,
)
from torchkiln.torch_internals._optimizers import note_update
from torchkiln.torch_internals._tensors import has_gradient_hooks

_SUPPORTED: tuple[type[torch.optim.Optimizer], ...] = (
    torch.optim.SGD,
    torch.optim.AdamW,  # before Adam, which it derives from
    torch.optim.Adam,
    torch.optim.RMSprop,
    LAMB,
)


# Optimisers whose own step was warned about: once is enough.
_warned: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()


@dataclass(frozen=True, slots=True)
class Recipe:
    """What of an optimiser is compiled in: rules, clipping, loss scaling, dtypes."""

    kind: str
    rules: tuple[UpdateRule, ...]
    clips: bool
    scales_loss: bool
    state_dtypes: StateDtypes

    def difference(self, other: Recipe) -> str:
        """Say what `other`, a recipe of the same kind and groups, switches on or off."""
        changes = [
            f"{field.name} of group {index}: {getattr(mine, field.name)} -> "
            f"{getattr(theirs, field.name)}"
            for index, (mine, theirs) in enumerate(zip(self.rules, other.rules, strict=True))
            for field in dataclasses.fields(cast(Any, mine))
            if getattr(mine, field.name) != getattr(theirs, field.name)
        ]
        if self.clips != other.clips:
            changes.append(f"clipping: {self.clips} -> {other.clips}")
        if self.scales_loss != other.scales_loss:
            changes.append(f"loss scaling: {self.scales_loss} -> {other.scales_loss}")
        changes += self.state_dtypes.difference(other.state_dtypes)
        return ", ".join(changes)


@dataclass(slots=True)
class Hyper:
    """What of an optimiser may change between calls: a snapshot of its numbers."""

    groups: list[dict[str, Any]]
    max_grad_norm: float
    loss_scaling: float


def read_recipe(optimizer: torch.optim.Optimizer) -> Recipe:
    """Return the structure of the optimiser.

    Raises:
        OptimizerError: if its maths is not known here.
    """
    base = next((kind for kind in _SUPPORTED if isinstance(optimizer, kind)), None)
    if base is None:
        raise OptimizerError(
            f"Unsupported optimizer type {type(optimizer).__name__}; use one of SGD, Adam, AdamW, "
            "RMSprop (torch.optim) or LAMB (torchkiln)"
        )
    # torch wraps `step` on every class; underneath, an inherited one is the base's own.
    own_step = inspect.unwrap(type(optimizer).step) is not inspect.unwrap(base.step)
    if own_step and optimizer not in _warned:
        _warned.add(optimizer)
        warn_user(
            f"{type(optimizer).__name__}.step is Python code that a compiled program does not "
            f"execute; the update of {base.__name__} is used"
        )
    if has_foreign_step_hooks(optimizer):
        warn_user(
            "the optimiser has step hooks, which a program does not execute; do their work after "
            "each call"
        )
    rules = tuple(_rule(base, optimizer, group) for group in optimizer.param_groups)
    hyper = read_hyper(optimizer)
    return Recipe(
        base.__name__,
        rules,
        math.isfinite(hyper.max_grad_norm),
        hyper.loss_scaling != 1.0,
        read_state_dtypes(optimizer),
    )


def _rule(
    base: type[torch.optim.Optimizer], optimizer: torch.optim.Optimizer, group: dict[str, Any]
) -> UpdateRule:
    maximize = bool(group.get("maximize", False))
    if base is torch.optim.SGD:
        return SGDRule(group["momentum"] != 0, bool(group["nesterov"]), maximize)
    if base in (torch.optim.Adam, torch.optim.AdamW):
        decoupled = base is torch.optim.AdamW or bool(group.get("decoupled_weight_decay", False))
        return AdamRule(decoupled, bool(group["amsgrad"]), maximize)
    if base is torch.optim.RMSprop:
        tf_variant = bool(getattr(optimizer, "use_tf_variant", False))
        return RMSpropRule(group["momentum"] != 0, bool(group["centered"]), maximize, tf_variant)
    return LAMBRule(bool(getattr(optimizer, "bias_correction", True)))


def read_hyper(optimizer: torch.optim.Optimizer) -> Hyper:
    """Copy the optimiser's numbers, so that later edits wait for `set_optimizer`."""
    groups = []
    for index, group in enumerate(optimizer.param_groups):
        values = {key: _number(value) for key, value in group.items() if key != "params"}
        betas = values.get("betas")
        if betas is not None and len(betas) != 2:
            raise OptimizerError(f"betas of group {index} must be two numbers, got {betas!r}")
        groups.append(values)
    limit = getattr(optimizer, "max_grad_norm", None)
    scale = getattr(optimizer, "loss_scaling", None)
    return Hyper(
        groups,
        math.inf if limit is None else float(limit),
        1.0 if scale is None else float(scale),
    )


def _number(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.item()
    if isinstance(value, list | tuple):
        return tuple(_number(entry) for entry in value)
    return value


@dataclass(slots=True)
class Row:
    """Parameters that share their scalars: one group, one dtype, one step count."""

    group: int
    dtype: torch.dtype
    members: list[int]
    step: int = 0


@dataclass(slots=True)
class OptimizerBinding:
    """State tensors of the parameters that a program updates, live in `optimizer.state`."""

    optimizer: torch.optim.Optimizer
    recipe: Recipe
    hyper: Hyper
    params: list[Tensor]
    names: list[str]
    rows: list[Row]
    state: list[dict[str, Tensor]] = field(default_factory=list)
    steps: Tensor | None = None
    published: bool = False
    stale: bool = False
    # Members that no gradient reaches: they have no state, as in torch.
    unreached: set[int] = field(default_factory=set)
    _num_published: int = 0
    _tables: dict[str, tuple[Any, Tensor]] = field(default_factory=dict)

    def rule(self, member: int) -> UpdateRule:
        return self.recipe.rules[self.rows[self.row_of(member)].group]

    def row_of(self, member: int) -> int:
        return next(i for i, row in enumerate(self.rows) if member in row.members)

    @property
    def state_tensors(self) -> list[Tensor]:
        return [tensor for state in self.state for tensor in state.values()]

    def dtypes(self) -> list[torch.dtype]:
        """Return the compute dtypes in use, one hyper-parameter table each."""
        return sorted({row.dtype for row in self.rows}, key=str)

    def next_hyper(self, num_updates: int) -> list[list[Tensor]]:
        """Return, for each of the next updates, the tables that the program takes as inputs."""
        width = max((len(self._scalars(row, 1)) for row in self.rows), default=0)
        scale = self.hyper.loss_scaling
        scalars = [self.hyper.max_grad_norm, scale, 1.0 / scale]
        dtypes = self.dtypes()
        updates = []
        for ahead in range(1, num_updates + 1):
            tables = []
            for dtype in dtypes:
                rows = [
                    self._scalars(row, row.step + ahead) for row in self.rows if row.dtype == dtype
                ]
                padded = [row + [0.0] * (width - len(row)) for row in rows]
                tables.append(self._table(str(dtype), padded, dtype))
            tables.append(self._table("scalars", scalars, torch.float32))
            updates.append(tables)
        return updates

    def _table(self, name: str, rows: list[Any], dtype: torch.dtype) -> Tensor:
        """Return the numbers as a tensor, the one of the step before if they are the same."""
        known, table = self._tables.get(name, (None, None))
        if table is None or known != rows:
            table = torch.tensor(rows, dtype=dtype, device=self.params[0].device)
            self._tables[name] = (rows, table)
        return table

    def _scalars(self, row: Row, step: int) -> list[float]:
        return self.recipe.rules[row.group].hyper(self.hyper.groups[row.group], step)

    def advance(self, num_updates: int) -> None:
        """Count updates that were done."""
        for row in self.rows:
            row.step += num_updates
        if self.steps is not None:
            # By NumPy, like the look at it: a call of torch costs ten times as much.
            numbers = self.steps.numpy()
            numbers += num_updates
        if not self.published:
            self.publish()
        # What torch's schedulers ask for: their step() should follow an update.
        note_update(self.optimizer)

    def select(self, names: list[str]) -> OptimizerBinding:
        """Return the binding for the named parameters only; rows keep their places."""
        kept = [member for member, name in enumerate(self.names) if name in set(names)]
        moved = {member: index for index, member in enumerate(kept)}
        rows = [
            Row(row.group, row.dtype, [moved[m] for m in row.members if m in moved], row.step)
            for row in self.rows
        ]
        return OptimizerBinding(
            self.optimizer,
            self.recipe,
            self.hyper,
            [self.params[member] for member in kept],
            [self.names[member] for member in kept],
            rows,
        )

    def empty_state(self, member: int, param: Tensor) -> dict[str, Tensor]:
        """Return memory for the state of a member that has the form of `param`."""
        dtypes = self.recipe.state_dtypes
        return {
            name: torch.empty_like(param.detach(), dtype=dtypes.of(name, param))
            for name in self.rule(member).state_names
        }

    def empty_sum(self, param: Tensor) -> Tensor:
        """Return memory for the sum of a parameter's gradients."""
        dtype = self.recipe.state_dtypes.of(SUMS, param)
        return torch.empty_like(param.detach(), dtype=dtype)

    def allocate(self) -> None:
        """Make the state tensors, from the optimiser's own where it has some."""
        self.state = [self.empty_state(member, param) for member, param in enumerate(self.params)]
        self.adopt()

    def changed_outside(self) -> bool:
        """Whether `optimizer.state` is no longer what this binding left there.

        `load_state_dict`, another program, plain `optimizer.step()` or clearing the state do that.
        One parameter tells for all: everybody changes them together.
        """
        if self.published and len(self.optimizer.state) < self._num_published:
            return True
        member = next((m for m in range(len(self.params)) if m not in self.unreached), None)
        if self.stale or member is None:
            return self.stale
        if not self.published:
            return bool(self.optimizer.state.get(self.params[member]))
        if self.steps is not None:
            counted = self.steps.numpy()[member]
            if counted != self.rows[self.row_of(member)].step:
                return True
        shown = self.optimizer.state.get(self.params[member]) or {}
        return any(shown.get(name) is not tensor for name, tensor in self.state[member].items())

    def adopt(self) -> None:
        """Copy values from `optimizer.state`; what is not there starts afresh."""
        found = False
        narrow: set[str] = set()
        for member, (param, own) in enumerate(zip(self.params, self.state, strict=True)):
            loaded = self.optimizer.state.get(param) or {}
            for name, tensor in own.items():
                value = loaded.get(name)
                if not isinstance(value, Tensor):
                    tensor.fill_(self.rule(member).initial(name))
                    continue
                found = True
                if value.is_meta:
                    raise OptimizerError(
                        f"{name} of {self.names[member]!r} in the optimiser's state is a meta "
                        "tensor, which has no values; load a state with values"
                    )
                if value is not tensor:
                    tensor.copy_(value)
                if value.dtype in HALVES and tensor.dtype not in HALVES:
                    narrow.add(f"{name} ({value.dtype})")
        if narrow:
            warn_about_narrow_state(narrow)
        steps = read_steps(self.optimizer, self.params)
        for row in self.rows:
            values = {steps[member] for member in row.members}
            if len(values) > 1:
                raise OptimizerError(
                    f"the loaded optimiser state has different step counts {sorted(values)} within "
                    f"group {row.group}; call destroy() on the program so that it compiles for them"
                )
            row.step = values.pop() if values else 0
        self.stale = False
        self.published = False
        if found:
            self.publish()

    def publish(self) -> None:
        """Show the state in `optimizer.state` in torch's format; it stays current from here on."""
        if any(self.rule(member).has_step for member in range(len(self.params))):
            # One vector, one view per parameter: counting costs one operation for all.
            counts = [float(self.rows[self.row_of(m)].step) for m in range(len(self.params))]
            self.steps = torch.tensor(counts, device="cpu")
        for member, (param, own) in enumerate(zip(self.params, self.state, strict=True)):
            entry: dict[str, Any] = dict(own)
            if self.rule(member).has_step and self.steps is not None:
                entry = {"step": self.steps[member], **entry}
            if entry and member not in self.unreached:
                self.optimizer.state[param] = entry
        self.published = True
        self._num_published = len(self.optimizer.state)


def read_steps(optimizer: torch.optim.Optimizer, params: list[Tensor]) -> list[int]:
    """Return how many updates each parameter has seen (for SGD: whether it saw one)."""
    steps = []
    for param in params:
        state = optimizer.state.get(param) or {}
        step = state.get("step")
        if step is None:
            steps.append(1 if isinstance(state.get("momentum_buffer"), Tensor) else 0)
        else:
            steps.append(int(_number(step)))
    return steps


def compute_dtype(param: Tensor) -> torch.dtype:
    return torch.float64 if param.dtype == torch.float64 else torch.float32


def _check_parameters(recipe: Recipe, params: list[Tensor], names: list[str]) -> None:
    for param, name in zip(params, names, strict=True):
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


def bind_optimizer(
    optimizer: torch.optim.Optimizer, params: list[Tensor], names: list[str]
) -> OptimizerBinding:
    """Arrange `params` (those that receive gradients) by the optimiser's groups.

    Parameters that are in no group are left out: torch would not update them either.
    """
    recipe, hyper = read_recipe(optimizer), read_hyper(optimizer)
    _check_parameters(recipe, params, names)
    group_of = {id(p): g for g, group in enumerate(optimizer.param_groups) for p in group["params"]}
    chosen = [(p, n) for p, n in zip(params, names, strict=True) if id(p) in group_of]
    kept, kept_names = [p for p, _ in chosen], [n for _, n in chosen]
    rows: dict[tuple[int, torch.dtype, int], Row] = {}
    for member, (param, step) in enumerate(zip(kept, read_steps(optimizer, kept), strict=True)):
        key = (group_of[id(param)], compute_dtype(param), step)
        rows.setdefault(key, Row(key[0], key[1], [], step)).members.append(member)
    return OptimizerBinding(optimizer, recipe, hyper, kept, kept_names, list(rows.values()))


def bind_module_optimizer(optimizer: torch.optim.Optimizer, binding: Binding) -> OptimizerBinding:
    """Bind the optimiser to the module's trainable parameters.

    Raises:
        CaptureError: if it should train something that is a constant of the program.
        OptimizerError: if it holds none of the parameters.
    """
    held = {id(param) for group in optimizer.param_groups for param in group["params"]}
    for slot in binding.attributes:
        if id(slot.tensor) in held:
            raise CaptureError(
                f"the optimiser should train {slot.name!r}, which is a plain attribute and so "
                "a constant; make it an nn.Parameter, lists of them an nn.ParameterList"
            )
    slots = [slot for slot in binding.parameters if slot.tensor.requires_grad]
    bound = bind_optimizer(
        optimizer, [slot.tensor for slot in slots], [slot.name for slot in slots]
    )
    if not bound.params:
        raise OptimizerError(
            "the optimiser holds no parameter of the module that requires a gradient; build it "
            "from module.parameters() of the same module"
        )
    return bound
