"""What PopTorch's optimisers have on top of torch's: extras, variable attributes, named state."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from poptorch._option_store import require
from torchkiln.checkpoints import keep_state_precision

_ACCUMULATION_TYPES = (torch.float16, torch.float32)
# The original's accumulation types -> the state that they are about, by torch's names; "grad" is
# the sum of gradients.
_TYPED_STATE = {
    "accum_type": ("grad",),
    "velocity_accum_type": ("momentum_buffer",),
    "first_order_momentum_accum_type": ("exp_avg", "grad_avg", "momentum_buffer"),
    "second_order_momentum_accum_type": ("exp_avg_sq", "square_avg"),
}
# torch's names of state tensors -> the original's prefixes.
_STATE_PREFIXES = {
    "momentum_buffer": "Accl___",
    "exp_avg": "Accl1___",
    "exp_avg_sq": "Accl2___",
    "square_avg": "Accl1___",
    "grad_avg": "Accl2___",
    "step": "Step___",
}


class VariableAttributes:
    """Which attributes a program may expect to change; here every attribute may."""

    def __init__(self, variable: Iterable[str], known: Iterable[str]) -> None:
        self._known = set(known)
        self._variable = set(variable)

    def isConstant(self, attr: str) -> bool:
        """Return whether the attribute was left at its default when constructed."""
        self._require_known(attr)
        return attr not in self._variable

    def markAsConstant(self, attr: str) -> None:
        """Record that the attribute will not change."""
        self._require_known(attr)
        self._variable.discard(attr)

    def markAsVariable(self, attr: str) -> None:
        """Record that the attribute may change."""
        self._require_known(attr)
        self._variable.add(attr)

    def _require_known(self, attr: str) -> None:
        require(attr in self._known, "Unknown attribute", attr, f"one of {sorted(self._known)}")

    def __repr__(self) -> str:
        return f"VariableAttributes(variable={sorted(self._variable)})"


class Optimizer:
    """The part that all of `poptorch.optim` shares; mixed into torch's classes."""

    variable_attrs: VariableAttributes
    # Parameter id -> (weak reference, name in the program); filled while a program is compiled.
    _names: dict[int, tuple[weakref.ref[Tensor], str]] = {}

    def _record(
        self,
        settings: dict[str, Any],
        group_keys: tuple[str, ...],
        extras: dict[str, tuple[Any, Any]],
    ) -> None:
        """Store extras (given value, default) as attributes, and which values were given."""
        for name, (value, default) in extras.items():
            if name.endswith("accum_type") and value is not None:
                require(
                    value in _ACCUMULATION_TYPES,
                    f"Unexpected {name}",
                    value,
                    "torch.float16 or torch.float32",
                )
            setattr(self, name, default if value is None else value)
        variable = [name for name in group_keys if name in settings]
        variable += [name for name, (value, _) in extras.items() if value is not None]
        self._extra_names = tuple(extras)
        self.variable_attrs = VariableAttributes(variable, [*group_keys, *extras])
        keep_state_precision(self)

    @property
    def state_dtypes(self) -> dict[str, torch.dtype]:
        """The accumulation types, as Torchkiln reads them."""
        return {
            key: getattr(self, name)
            for name, keys in _TYPED_STATE.items()
            if hasattr(self, name)
            for key in keys
        }

    def _bind(self, names: dict[Tensor, str] | None) -> None:
        """Let `state_dict` name parameters as the program does; None takes that back."""
        self._names = {id(p): (weakref.ref(p), name) for p, name in (names or {}).items()}

    def __getstate__(self) -> dict[str, Any]:
        """Return torch's three entries and the extras: copies and pickles keep them."""
        state = super().__getstate__()
        names = (*self._extra_names, "_extra_names", "variable_attrs")
        return {**state, **{name: getattr(self, name) for name in names}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        keep_state_precision(self)  # hooks are not part of copies

    def state_dict(self) -> dict[str, Any]:
        """Return torch's state and the same tensors by the original's names.

        `ipu_state` and `ipu_param` are None until a training model with this optimiser has been
        compiled.
        """
        state = super().state_dict()
        names = self._parameter_names()
        state["ipu_state"] = self._named_state(names) if names else None
        state["ipu_param"] = self._named_hyper_parameters(names) if names else None
        return state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over a state that a `poptorch.optim` optimiser returned.

        Raises:
            RuntimeError: for a state of a plain torch optimiser; load that one with
                `torch.optim.Optimizer.load_state_dict(optimizer, state)`.
        """
        if not {"ipu_state", "ipu_param"} <= set(state_dict):
            raise RuntimeError(
                "Only IPU optimizer states can be loaded: the keys 'ipu_state' and 'ipu_param' are "
                f"missing (got {sorted(map(str, state_dict))}). For a state of torch.optim call "
                "torch.optim.Optimizer.load_state_dict(optimizer, state)"
            )
        own = {k: v for k, v in state_dict.items() if k not in ("ipu_state", "ipu_param")}
        super().load_state_dict(own)

    def _parameter_names(self) -> dict[int, str]:
        return {key: name for key, (ref, name) in self._names.items() if ref() is not None}

    def _named_state(self, names: dict[int, str]) -> dict[str, Tensor]:
        return {
            f"{_STATE_PREFIXES[key]}{names[id(param)]}": value
            for param, entries in self.state.items()
            if id(param) in names
            for key, value in entries.items()
            if key in _STATE_PREFIXES and isinstance(value, Tensor)
        }

    def _named_hyper_parameters(self, names: dict[int, str]) -> dict[str, Tensor]:
        result = {"lossScaling_FLOAT": torch.tensor(float(self.loss_scaling))}
        for group in self.param_groups:
            for param in group["params"]:
                if id(param) in names:
                    for key, value in self._scalars(group).items():
                        result[f"{key}___specific___{names[id(param)]}"] = torch.tensor(value)
        return result

    def _scalars(self, group: dict[str, Any]) -> dict[str, float]:
        lr, decay = float(group["lr"]), float(group["weight_decay"])
        if "dampening" not in group:
            return {"learningRate": lr, "weightDecay": decay}
        damped = lr * (1 - group["dampening"])
        return {
            "scaledLearningRate0": damped / self.loss_scaling,
            "weightDecayScaleFactor0": 1 - damped * decay,
        }


def given(**settings: Any) -> dict[str, Any]:
    """Return the settings that are not None: the others keep torch's defaults."""
    return {name: value for name, value in settings.items() if value is not None}
