"""Operators that are called many times a step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


def define_operator(name: str) -> Callable[[Callable[..., Any]], Any]:
    """Register a function for all devices as the operator `torchkiln::name` and return that.

    As `torch.library.custom_op`, but a call costs half as much: nothing checks that the function
    returns new memory and leaves its inputs alone, so it must.
    """

    def register(function: Callable[..., Any]) -> Any:
        qualified = f"torchkiln::{name}"
        schema = torch.library.infer_schema(function, mutates_args=())
        torch.library.define(qualified, schema, tags=(torch.Tag.pt2_compliant_tag,))
        torch.library.impl(qualified, "default", function)
        return getattr(torch.ops.torchkiln, name).default

    return register
