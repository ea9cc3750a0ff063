"""Operators that are called many times a step."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from torchkiln.ops._native import load_native

# Operators with a kernel in a C++ file -> the name of that file.
_natives: dict[Any, str] = {}


def define_operator(name: str, native: str | None = None) -> Callable[[Callable[..., Any]], Any]:
    """Register a function for all devices as the operator `torchkiln::name` and return that.

    As `torch.library.custom_op`, but a call costs half as much: nothing checks that the function
    returns new memory and leaves its inputs alone, so it must.

    Args:
        name: Of the operator.
        native: A C++ file, without its ending, that registers a kernel for the CPU. It is built and
            loaded when a tensor of the CPU comes by; from then on torch calls the kernel, without
            Python. What the kernel has no types for comes back to the function. Which device, and
            which type, is decided by the first argument, a tensor.
    """

    def register(function: Callable[..., Any]) -> Any:
        schema = torch.library.infer_schema(function, mutates_args=())
        if native is None:
            return _register(name, schema, function)
        _register(f"{name}_plain", schema, function)

        @functools.wraps(function)
        def enter(*arguments: Any) -> Any:
            # Once there is a kernel for the CPU, its tensors do not come here.
            if arguments[0].device.type == "cpu" and load_native(native) is not None:
                return operator(*arguments)
            return function(*arguments)

        operator = _register(name, schema, enter)
        _natives[operator] = native
        return operator

    return register


def native_of(target: Any) -> str | None:
    """Return the C++ file whose kernel an operator calls on the CPU; None: it has none."""
    return _natives.get(target)


def _register(name: str, schema: str, function: Callable[..., Any]) -> Any:
    qualified = f"torchkiln::{name}"
    torch.library.define(qualified, schema, tags=(torch.Tag.pt2_compliant_tag,))
    torch.library.impl(qualified, "default", function)
    return getattr(torch.ops.torchkiln, name).default
