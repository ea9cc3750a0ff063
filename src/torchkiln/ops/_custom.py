"""Operators of other devices, by the functions that stand for them here."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor

from torchkiln.ops._control import as_list
from torchkiln.ops._host import host_call, register_host_function

CustomOp = Callable[..., Tensor | Sequence[Tensor]]

# By domain (None: any) and name; with whether it runs on the host.
_registered: dict[tuple[str | None, str], tuple[CustomOp, bool]] = {}


def register_custom_op(
    name: str, function: CustomOp, *, domain: str | None = None, on_host: bool = False
) -> None:
    """Let `function` stand for the operator that `poptorch.custom_op` calls by this name.

    It is called with the tensors of the operator, and its attributes as keyword arguments, and
    returns a tensor or several. A later function takes the name over; programs that are compiled
    keep the one that they were compiled with.

    Args:
        name: Of the operator.
        function: Made of torch's operations, or an operator of `torch.library`. It is recorded
            with forward, and gradients flow through it.
        domain: Of the operator; None: any.
        on_host: Call the function as it is whenever the program runs, because it is no torch: with
            values on the CPU, and without gradients. Result sizes may depend on input sizes only.
    """
    if not callable(function):
        raise TypeError(f"a custom operator is a function of tensors, got {function!r}")
    _registered[domain, name] = (function, on_host)
    if on_host:
        register_host_function(_host_name(domain, name), function)


def registered_custom_ops() -> dict[tuple[str | None, str], tuple[CustomOp, bool]]:
    """Return all of them: what programs do depends on them."""
    return dict(_registered)


def call_custom_op(
    name: str,
    domain: str,
    inputs: Sequence[Tensor],
    example_outputs: Sequence[Tensor],
    attributes: Mapping[str, Any],
) -> list[Tensor]:
    """Return what the function that is registered for an operator makes of its inputs.

    Raises:
        NotImplementedError: if there is none; it says how to register one.
        ValueError: if its results have other forms than `example_outputs`.
    """
    key = next((key for key in ((domain, name), (None, name)) if key in _registered), None)
    if key is None:
        raise NotImplementedError(
            f"custom_op({name!r}, {domain!r}): operators of the original's hardware are not "
            "available here; register a function of tensors that does the same, before the model "
            f"is compiled: torchkiln.register_custom_op({name!r}, function, domain={domain!r})"
        )
    function, on_host = _registered[key]
    if on_host:
        encoded = json.dumps(dict(attributes), sort_keys=True)
        results = host_call(f"{_host_name(*key)}?{encoded}", inputs)
    else:
        results = as_list(function(*inputs, **attributes))
    forms = [(tuple(result.shape), result.dtype) for result in results]
    expected = [(tuple(example.shape), example.dtype) for example in example_outputs]
    if forms != expected:
        raise ValueError(
            f"the function that is registered for custom_op({name!r}, {domain!r}) returns "
            f"{_described(forms)}, but its example_outputs are {_described(expected)}"
        )
    return results


def _host_name(domain: str | None, name: str) -> str:
    return f"custom_op:{domain}:{name}"


def _described(forms: list[tuple[tuple[int, ...], Any]]) -> str:
    return ", ".join(f"{dtype}{list(shape)}" for shape, dtype in forms) or "nothing"
