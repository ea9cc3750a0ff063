"""The tables inside `nn.Module`, and the place where it calls forward."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase

# torch: the attributes of a module that hold its parts by name; everything else in `__dict__` is
# the user's, or hooks. for: plain tensor attributes are constants of a program; keys of programs.
PARAMETERS = "_parameters"
BUFFERS = "_buffers"
MODULES = "_modules"

# torch: the bases of all batch norms, and of all norms that have running statistics.
# for: the warning about filler in statistics, and the façade's rule for buffers.
BatchNormBase = _BatchNorm
RunningNormBase = _NormBase


def parameters_of(module: nn.Module) -> dict[str, nn.Parameter | None]:
    """Return the module's own table of parameters; what is put there is what forward sees.

    torch: attribute access looks the name up in `_parameters`.
    for: the step puts stand-ins in the places of parameters while forward is recorded.
    """
    return module._parameters


def buffers_of(module: nn.Module) -> dict[str, Tensor | None]:
    """Return the module's own table of buffers, like `parameters_of`.

    torch: attribute access looks the name up in `_buffers`.
    for: stand-ins as above; a recomputed module sees its buffers as they were.
    """
    return module._buffers


def children_of(module: nn.Module) -> dict[str, nn.Module | None]:
    """Return the module's own table of children, None and repeated ones included.

    torch: `_modules`, in the order of registration; `named_children` leaves repeated ones out.
    for: the façade prints modules as the original does.
    """
    return module._modules


def class_name_of(module: nn.Module) -> str:
    """Return the name under which the module prints itself.

    torch: `_get_name`, which some layers override.
    for: the façade prints modules as the original does.
    """
    return module._get_name()


def forward_pre_hooks_of(module: nn.Module) -> dict[int, Callable[..., Any]]:
    """Return the module's own table of hooks before forward, by their keys.

    torch: `_forward_pre_hooks`; what is deleted from it is no longer called.
    for: a layer is made static once; the façade takes its annotations off again.
    """
    return module._forward_pre_hooks


def check_batch_norm_input(norm: BatchNormBase, input: Tensor) -> None:
    """Raise torch's error if `input` has a number of dimensions that the norm does not take.

    torch: each kind of batch norm overrides `_check_input_dim`.
    for: `MaskedBatchNorm1d` refuses what `BatchNorm1d` refuses, in the same words.
    """
    norm._check_input_dim(input)


@contextlib.contextmanager
def calls_replaced(
    make: Callable[[Callable[..., Any]], Callable[..., Any]],
) -> Iterator[None]:
    """Let `make(original)` be what every module runs when it is called.

    torch: `nn.Module.__call__` ends in `_call_impl`, which runs hooks and forward; `make_fx`
        replaces `__call__` and leaves this one alone.
    for: nodes of a graph know the module that recorded them, also one that an exception leaves.
    """
    with mock.patch.object(nn.Module, "_call_impl", make(nn.Module._call_impl)):
        yield
