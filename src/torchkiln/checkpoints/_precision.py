"""Keeping state that is wider than its parameters: from `load_state_dict`, and from torch's step.

torch assumes that state has the dtype of its parameter. Its `load_state_dict` casts, so float32
moments of half-precision weights would lose digits; some of its `step` functions fail on them.
"""

from __future__ import annotations

import weakref
from itertools import chain
from typing import Any

import torch
from torch import Tensor

from torchkiln.checkpoints._divided import refuse_step_of_parts
from torchkiln.core import OptimizerError, warn_user
from torchkiln.torch_internals._optimizers import step_hooks_of

HALVES = (torch.float16, torch.bfloat16)
# State that torch's steps compute with; what a subclass keeps beside it is its own business.
_STATE_OF_TORCH = frozenset(
    ("exp_avg", "exp_avg_sq", "max_exp_avg_sq", "grad_avg", "square_avg", "momentum_buffer")
)

_kept: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()


def keep_state_precision(optimizer: torch.optim.Optimizer) -> None:
    """From now on, let `optimizer.load_state_dict` keep wide state of half-precision parameters.

    Copies and pickles of the optimiser need a call of their own, as they take no hooks with them.
    """
    if optimizer in _kept:
        return
    _kept.add(optimizer)
    loading = _Loading()
    optimizer.register_load_state_dict_pre_hook(loading.begin)
    optimizer.register_load_state_dict_post_hook(loading.finish)
    optimizer.register_step_pre_hook(_refuse_step)


def has_foreign_step_hooks(optimizer: torch.optim.Optimizer) -> bool:
    """Whether somebody else registered hooks around `step`."""
    own = (_refuse_step, refuse_step_of_parts)
    return any(hook not in own for hook in step_hooks_of(optimizer))


def warn_about_narrow_state(found: set[str]) -> None:
    """Tell of state, by name and dtype, that a program had to widen."""
    warn_user(
        f"the optimiser's state comes in half precision: {', '.join(sorted(found))}. The program "
        "goes on in float32, but digits that are gone stay gone. torch's load_state_dict cuts "
        "float32 state of half-precision weights: call it after the program was made, or after "
        "torchkiln.checkpoints.keep_state_precision(optimizer)"
    )


class _Loading:
    """Remembers what is loaded, and puts back what torch narrowed."""

    def __init__(self) -> None:
        self._saved: dict[str, Any] | None = None

    def begin(self, optimizer: torch.optim.Optimizer, state_dict: dict[str, Any]) -> None:
        self._saved = state_dict

    def finish(self, optimizer: torch.optim.Optimizer) -> None:
        saved, self._saved = self._saved, None
        if saved is None:
            return
        numbers = chain.from_iterable(group["params"] for group in saved["param_groups"])
        params = chain.from_iterable(group["params"] for group in optimizer.param_groups)
        for number, param in zip(numbers, params, strict=False):
            if param.dtype not in HALVES:
                continue
            loaded = optimizer.state.get(param) or {}
            for name, value in (saved["state"].get(number) or {}).items():
                if _was_narrowed(value, loaded.get(name), param.dtype):
                    loaded[name] = value.detach().to(param.device, copy=True)


def _was_narrowed(saved: Any, loaded: Any, dtype: torch.dtype) -> bool:
    """Whether `loaded` is `saved` cast to `dtype`; another hook may have loaded something else."""
    if not isinstance(saved, Tensor) or not isinstance(loaded, Tensor):
        return False
    if not saved.is_floating_point() or saved.dtype == dtype or loaded.dtype != dtype:
        return False
    cast = saved.detach().to(dtype=dtype, device=loaded.device)
    # As integers: NaN is equal to itself.
    return torch.equal(cast.view(torch.int16), loaded.detach().view(torch.int16))


def _refuse_step(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
    """Raise before torch's own step fails half-way, with the steps counted and nothing updated."""
    # A closure makes the gradients later.
    has_closure = any(callable(value) for value in (*args, *kwargs.values()))
    for group in optimizer.param_groups:
        if not (_interpolates(optimizer, group) or group.get("fused")):
            continue
        for param in group["params"]:
            if param.grad is None and not has_closure:
                continue
            for name, value in (optimizer.state.get(param) or {}).items():
                if name in _STATE_OF_TORCH and _has_other_dtype(value, param):
                    raise OptimizerError(
                        f"{type(optimizer).__name__}.step() of torch cannot update {param.dtype} "
                        f"weights with {name} in {value.dtype}, which is how programs keep it; go "
                        "on training with the program, or cast the tensors in optimizer.state to "
                        "the dtype of the weights first (which loses digits)"
                    )


def _has_other_dtype(value: Any, param: Tensor) -> bool:
    return isinstance(value, Tensor) and value.dtype != param.dtype


def _interpolates(optimizer: torch.optim.Optimizer, group: dict[str, Any]) -> bool:
    """Whether torch's step uses `lerp`, the one operation in it that refuses mixed dtypes."""
    if isinstance(optimizer, torch.optim.Adam):  # and AdamW, which derives from it
        return True
    return isinstance(optimizer, torch.optim.RMSprop) and bool(group.get("centered"))
