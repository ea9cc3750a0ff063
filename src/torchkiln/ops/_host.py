"""Calling a Python function from inside a program."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from torchkiln.ops._control import as_list
from torchkiln.torch_internals._fake_tensors import unset_fake_temporarily

_functions: dict[str, Callable[..., Any]] = {}


def register_host_function(name: str, function: Callable[..., Any]) -> None:
    """Make `function` callable from programs as `name`; a later one takes the name over.

    Programs may write `?` and keyword arguments in JSON behind the name.
    """
    _functions[name] = function


def host_call(name: str, inputs: Sequence[Tensor]) -> list[Tensor]:
    """Return the results of the registered function on CPU copies of `inputs`.

    The function may do anything, but its result sizes may depend on input sizes only: it runs
    once on zeros while a program is captured. No gradient flows through it.
    """
    return _host_call(list(inputs), name)


def _call(name: str, inputs: Sequence[Tensor]) -> list[Tensor]:
    function, keywords = _functions.get(name), {}
    if function is None:
        known, _, encoded = name.partition("?")
        function, keywords = _functions.get(known), json.loads(encoded or "{}")
    if function is None:
        raise LookupError(
            f"no host function {name!r} in this process; construct the module that registers it "
            f"before running the program (known: {sorted(_functions) or 'none'})"
        )
    with torch.no_grad():
        results = as_list(function(*inputs, **keywords))
    # An operator may not return its own inputs, nor the same tensor twice.
    return [result.detach().clone() for result in results]


@torch.library.custom_op("torchkiln::host_call", mutates_args=())
def _host_call(inputs: Sequence[Tensor], name: str) -> list[Tensor]:
    device = inputs[0].device if inputs else torch.device("cpu")
    results = _call(name, [tensor.detach().cpu().clone() for tensor in inputs])
    return [result.to(device) for result in results]


@_host_call.register_fake
def _(inputs: Sequence[Tensor], name: str) -> list[Tensor]:
    with unset_fake_temporarily():
        zeros = [torch.zeros(tuple(t.shape), dtype=t.dtype) for t in inputs]
        forms = [(tuple(r.shape), r.dtype) for r in _call(name, zeros)]
    device = inputs[0].device if inputs else torch.device("cpu")
    return [torch.empty(shape, dtype=dtype, device=device) for shape, dtype in forms]
