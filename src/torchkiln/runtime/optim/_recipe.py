"""What of an optimiser is compiled in: its kind, rules, clipping, loss scaling, dtypes of state."""

from __future__ import annotations

import dataclasses
import inspect
import math
import weakref
from dataclasses import dataclass
from typing import Any, cast

import torch

from torchkiln.checkpoints._precision import has_foreign_step_hooks
from torchkiln.core import OptimizerError, warn_user
from torchkiln.runtime.optim._hyper import read_hyper
from torchkiln.runtime.optim._lamb import LAMB
from torchkiln.runtime.optim._state_dtypes import StateDtypes, read_state_dtypes
from torchkiln.runtime.optim._update_rules import (
    AdamRule,
    LAMBRule,
    RMSpropRule,
    SGDRule,
    UpdateRule,
)

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
    # Whether the loss is multiplied with an input, and gradients are divided by it. So it is as
    # soon as the optimiser has the attribute `loss_scaling`, which may be 1.0 at times.
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
        changes += self.state_dtypes.difference(other.state_dtypes)
        return ", ".join(changes)

    def check_replacement(self, other: Recipe) -> None:
        """Raise `OptimizerError` if an update compiled for this cannot stand for `other`.

        Loss scaling is no reason: see `OptimizerBinding.is_compiled_without_scale`.
        """
        if other.kind != self.kind:
            raise OptimizerError(
                f"the program was compiled for {self.kind}, got {other.kind}; create a new "
                "program, or destroy() this one first"
            )
        if len(other.rules) != len(self.rules):
            raise OptimizerError(
                f"the program was compiled for {len(self.rules)} parameter groups, got "
                f"{len(other.rules)}; create a new program, or destroy() this one first"
            )
        if dataclasses.replace(other, scales_loss=self.scales_loss) != self:
            raise OptimizerError(
                f"the structure of the optimiser changed ({self.difference(other)}); numbers may "
                "change without recompiling, but momentum or clipping cannot be switched "
                "on or off: create a new program, or destroy() this one first"
            )


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
        getattr(optimizer, "loss_scaling", None) is not None,
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
