"""Autograd and the dispatcher: who records, what runs now, and how operators are described."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode as TorchDispatchMode

# torch: a context below which operators go straight to their kernels: nothing is recorded, and no
# time is spent on looking for a recorder. for: a native step, which holds its own backward. A name
# and not a function, because it is entered once a step.
below_autograd = torch._C._AutoDispatchBelowAutograd


def is_in_backward() -> bool:
    """Whether this thread is inside a backward pass.

    torch: `_current_graph_task_id` is -1 outside of any.
    for: a checkpointed block that runs again in backward still knows the batch of its forward.
    """
    return torch._C._current_graph_task_id() != -1


def schema_of(operator: Any) -> Any:
    """Return what an operator says about its arguments, or None for what is no operator.

    torch: an `OpOverload` has `_schema` with `name`, `is_mutable`, `arguments` (`name`,
        `default_value`, `alias_info.is_write`) and `returns`.
    for: recorded graphs are checked and changed by what operators write, not by their names.
    """
    return getattr(operator, "_schema", None)


def mkldnn_is_enabled() -> bool:
    """Whether operators may use oneDNN (`set_mkldnn_enabled`)."""
    return torch._C._get_mkldnn_enabled()


def set_mkldnn_enabled(enabled: bool) -> None:
    """Let operators use oneDNN, or not.

    torch: one flag of the process; `torch.backends.mkldnn.flags()` sets others too, and warns.
    for: recurrent layers are recorded without oneDNN's kernel, which AOTInductor cannot call.
    """
    torch._C._set_mkldnn_enabled(enabled)
