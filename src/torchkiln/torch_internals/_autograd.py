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


def last_sequence_number() -> int:
    """Return the number of the operation that autograd recorded last in this thread.

    torch: autograd counts what it records, and gives its count to the backward function
        (`_sequence_nr`); the count is taken before the operator itself runs.
    for: an operation of backward is put down to the line of forward that it differentiates.
    """
    return torch._C._autograd._get_sequence_nr() - 1


def backward_functions(outputs: Any) -> dict[Any, int]:
    """Return the backward functions behind one tensor or several, each with its number.

    torch: `grad_fn.next_functions` leads from a function to those of its inputs; `_sequence_nr` is
        the number of the operation in forward.
    for: as above.
    """
    tensors = [outputs] if isinstance(outputs, torch.Tensor) else list(outputs)
    waiting = [tensor.grad_fn for tensor in tensors if tensor.grad_fn is not None]
    found: dict[Any, None] = dict.fromkeys(waiting)
    while waiting:
        for function, _ in waiting.pop().next_functions:
            if function is not None and function not in found:
                found[function] = None
                waiting.append(function)
    return {function: function._sequence_nr() for function in found}
