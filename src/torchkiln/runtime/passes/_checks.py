"""Refusing captured graphs that would not do what the user's code says."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from torch import Tensor, fx

from torchkiln.core import CaptureError, warn_user
from torchkiln.runtime.passes._calls import base_of, written_by


def check_graph(graph: fx.GraphModule, trained: Collection[int] | None) -> None:
    """Look for tensors and generators that live outside the module.

    `trained` are the ids of all parameters that the optimiser holds, None for inference.

    Raises:
        CaptureError: if one of them would have to change, which a program does to inputs only.
    """
    for node in graph.graph.nodes:
        if node.op == "get_attr" and trained is not None:
            _check_constant(getattr(graph, node.target), trained)
        elif node.op == "call_function":
            _check_call(graph, node)


def _check_constant(value: Any, trained: Collection[int]) -> None:
    if not isinstance(value, Tensor) or not value.requires_grad:
        return
    what = f"forward uses a trainable tensor of shape {tuple(value.shape)} outside the module"
    remedy = (
        "make it part of the module: assign the parameter or module as an attribute, lists of "
        "modules as nn.ModuleList"
    )
    if id(value) in trained:
        raise CaptureError(f"{what}, which the optimiser should train; {remedy}")
    warn_user(f"{what}; its present value is compiled in. {remedy}")


def _check_call(graph: fx.GraphModule, node: fx.Node) -> None:
    if node.kwargs.get("generator") is not None:
        raise CaptureError(
            f"{node.target} draws from a generator of its own, whose state is no part of the "
            "program; draw from torch's default generator, and seed it outside forward"
        )
    for argument in written_by(node):
        base = base_of(argument)
        if base.op == "get_attr":
            shape = tuple(getattr(graph, str(base.target)).shape)
            raise CaptureError(
                f"forward writes to a tensor of shape {shape} that is no part of the module; make "
                "it a buffer (register_buffer), or pass it to forward"
            )
