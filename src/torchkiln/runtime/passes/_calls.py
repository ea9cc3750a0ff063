"""Reading one call of a captured graph: its arguments, what it writes to, what it is a view of."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import fx

from torchkiln.torch_internals._autograd import schema_of


def arguments_of(node: fx.Node) -> dict[str, Any]:
    """Return the arguments by name; recorded calls leave out those that equal the default."""
    schema = schema_of(node.target)
    return {
        argument.name: node.args[index]
        if index < len(node.args)
        else node.kwargs.get(argument.name, argument.default_value)
        for index, argument in enumerate(schema.arguments)
    }


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
