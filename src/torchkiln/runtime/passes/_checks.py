"""Refusing captured graphs that would not do what the user's code says."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import Tensor, fx

from torchkiln.core import CaptureError, warn_user
from torchkiln.torch_internals._autograd import schema_of


def check_graph(graph: fx.GraphModule, trained: set[int] | None) -> None:
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


def _check_constant(value: Any, trained: set[int]) -> None:
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


def written_by(node: fx.Node) -> Iterator[fx.Node]:
    """Yield the arguments that a call writes to."""
    schema = schema_of(node.target)
    for position, argument in enumerate(schema.arguments if schema is not None else ()):
        if argument.alias_info is None or not argument.alias_info.is_write:
            continue
        value = node.args[position] if position < len(node.args) else node.kwargs.get(argument.name)
        if isinstance(value, fx.Node):
            yield value


def base_of(node: fx.Node) -> fx.Node:
    """Return the node whose memory `node` is a view of."""
    while node.op == "call_function" and node.args and isinstance(node.args[0], fx.Node):
        schema = schema_of(node.target)
        returns = schema.returns if schema is not None else ()
        if not returns or returns[0].alias_info is None:
            break
        node = node.args[0]
    return node
