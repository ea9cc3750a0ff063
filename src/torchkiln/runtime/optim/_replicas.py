"""The state of an optimiser in several processes: that of the first one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from torchkiln.distributed import Group


def take_state_of_first(group: Group, optimizer: torch.optim.Optimizer) -> None:
    """Give the optimiser of each process the state of rank 0's.

    Its groups must hold parameters of the same forms everywhere. Called by all processes.
    """
    params = [param for one in optimizer.param_groups for param in one["params"]]
    own = [described_state(optimizer.state.get(param) or {}) for param in params]
    told = group.from_first(own)
    tensors: list[Tensor] = []
    for param, form in zip(params, told, strict=True):
        if not form:
            optimizer.state.pop(param, None)
            continue
        before = optimizer.state.get(param) or {}
        state = {
            name: memory_for_state(value, param, before.get(name)) for name, value in form.items()
        }
        optimizer.state[param] = state
        tensors += [value for value in state.values() if isinstance(value, Tensor)]
    group.broadcast_(tensors)


def described_state(state: dict[str, Any]) -> dict[str, Any]:
    """Return state with the forms of tensors in their place."""
    return {
        name: _form(value) if isinstance(value, Tensor) else value for name, value in state.items()
    }


@dataclass(frozen=True, slots=True)
class _Form:
    """A tensor without its values."""

    shape: torch.Size
    dtype: torch.dtype
    device: str


def _form(tensor: Tensor) -> _Form:
    return _Form(tensor.shape, tensor.dtype, tensor.device.type)


def memory_for_state(value: Any, param: Tensor, before: Any = None) -> Any:
    """Return memory for a tensor of this form, that of `before` if it fits; other values as is."""
    if not isinstance(value, _Form):
        return value
    if isinstance(before, Tensor) and _form(before) == value:
        return before
    device = param.device if value.device == param.device.type else torch.device(value.device)
    if value.shape == param.shape:
        return torch.empty_like(param.detach(), dtype=value.dtype, device=device)
    return torch.empty(value.shape, dtype=value.dtype, device=device)
