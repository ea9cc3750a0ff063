"""Optimisers whose state is divided among processes: it is whole again after all of them gather it.

Until then there is nothing that `state_dict()` could return, `step()` could use, and a copy or a
pickle could take along, and all of these are an error that says what to do.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import Any, Literal

import torch

from torchkiln.core import OptimizerError

# Which ranks have the whole state afterwards.
Recipients = Literal["all", "first"]
Gather = Callable[[Recipients], None]

# Who holds the parts of an optimiser's state, as long as they live.
_holders: weakref.WeakKeyDictionary[torch.optim.Optimizer, weakref.WeakMethod[Gather]] = (
    weakref.WeakKeyDictionary()
)
_incomplete: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()
_guarded: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()

_REMEDY = (
    "call gather_optimizer_state() of the program (or "
    "torchkiln.checkpoints.gather_optimizer_state(optimizer)) on all ranks first"
)


def gather_optimizer_state(optimizer: torch.optim.Optimizer, to: Recipients = "all") -> None:
    """Make the state of an optimiser whole, if programs of several processes have divided it.

    Afterwards, and until the next update, `optimizer.state` and `optimizer.state_dict()` have the
    state in torch's format. Called by all processes together; nothing happens if the state is not
    divided.

    Args:
        optimizer: Of a training program.
        to: "all": every rank has the state; "first": rank 0 alone, and the others need no memory
            for it.

    Raises:
        DistributedError: A process is missing.
        OptimizerError: The program that held this process' part of the state is gone.
    """
    if to not in ("all", "first"):
        raise OptimizerError(f'to must be "all" or "first", got {to!r}')
    held = _holders.get(optimizer)
    gather = None if held is None else held()
    if gather is not None:
        gather(to)
    elif optimizer in _incomplete:
        raise OptimizerError(
            "the program that held this rank's part of the optimiser's state is gone, and the "
            "state with it; keep the program until the state is gathered, or load a saved state"
        )


def hold_parts(optimizer: torch.optim.Optimizer, gather: Gather | None) -> None:
    """Say who can gather the state of an optimiser; None: it is divided no longer."""
    if gather is None:
        _holders.pop(optimizer, None)
        return
    _holders[optimizer] = weakref.WeakMethod(gather)
    if optimizer not in _guarded:
        _guarded.add(optimizer)
        optimizer.register_state_dict_pre_hook(_refuse_state_dict)
        optimizer.register_step_pre_hook(refuse_step_of_parts)
        optimizer.register_load_state_dict_post_hook(_is_complete)


def holder_of(optimizer: torch.optim.Optimizer) -> Any:
    """Return the object that holds this process' part of the state; None: nobody does."""
    held = _holders.get(optimizer)
    gather = None if held is None else held()
    return None if gather is None else gather.__self__  # type: ignore[attr-defined]


def set_complete(optimizer: torch.optim.Optimizer, is_complete: bool) -> None:
    """Say whether `optimizer.state` has the whole state."""
    if is_complete:
        _is_complete(optimizer)
        return
    _incomplete.add(optimizer)
    # `copy` and `pickle` ask the object itself before its class. torch has no hook for them.
    vars(optimizer)["__getstate__"] = functools.partial(_refuse_copy, weakref.ref(optimizer))


def _is_complete(optimizer: torch.optim.Optimizer) -> None:
    _incomplete.discard(optimizer)
    vars(optimizer).pop("__getstate__", None)


def require_complete(optimizer: torch.optim.Optimizer, action: str) -> None:
    """Raise OptimizerError if `optimizer.state` lacks what other processes have.

    Args:
        optimizer: Whose state is asked for.
        action: What needs the whole state, as the beginning of a sentence.
    """
    if optimizer in _incomplete:
        raise OptimizerError(
            f"{action} needs the whole state of the optimiser, but this rank has only its part of "
            f"it (shard_optimizer=True); {_REMEDY}"
        )


def _refuse_state_dict(optimizer: torch.optim.Optimizer) -> None:
    require_complete(optimizer, "state_dict()")


def _refuse_copy(optimizer: weakref.ref[torch.optim.Optimizer]) -> None:
    """Raise in the place of `__getstate__`: a copy would begin anew, and nobody would know."""
    held = optimizer()
    assert held is not None  # whoever asks for its state has it
    require_complete(held, "a copy or a pickle of the optimiser")


def refuse_step_of_parts(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
    """Raise before torch's own step would begin with fresh state; a hook of the optimiser."""
    require_complete(optimizer, "step() outside of the program")
