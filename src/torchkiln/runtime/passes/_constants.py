"""What of a captured graph never changes: inputs that must not be written, constant outputs."""

from __future__ import annotations

import torch
from torch import fx

aten = torch.ops.aten


def protect_constant(graph: fx.GraphModule, placeholder: fx.Node) -> None:
    """Let the graph work on a copy of an input that it writes to."""
    with graph.graph.inserting_after(placeholder):
        copied = graph.graph.call_function(aten.clone.default, (placeholder,))
    copied.meta = dict(placeholder.meta)
    placeholder.replace_all_uses_with(copied, delete_user_cb=lambda user: user is not copied)


def constant_outputs(graph: fx.GraphModule) -> list[int]:
    """Return the positions of outputs that depend neither on an input nor on chance."""
    variable: set[fx.Node] = set()
    for node in graph.graph.nodes:
        tags = getattr(node.target, "tags", ())
        if (
            node.op == "placeholder"
            or torch.Tag.nondeterministic_seeded in tags
            or any(parent in variable for parent in node.all_input_nodes)
        ):
            variable.add(node)
    (outputs,) = graph.graph.output_node().args
    assert isinstance(outputs, list | tuple)
    return [index for index, node in enumerate(outputs) if node not in variable]
