"""Images in channels-last layout from the first convolution on.

Inductor asks convolutions for channels last, but lays out what their backward reads as it was
recorded. With both in one graph, an activation recorded in torch's default layout would exist three
times: as recorded, and converted for either convolution. So the graph itself is moved to channels
last: where a convolution meets an image in another layout, it is converted once, and everything
that follows keeps the layout.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, fx

aten = torch.ops.aten


def move_to_channels_last(graph: fx.GraphModule, inputs: list[Tensor]) -> None:
    """Convert images where the graph's convolutions first meet them; results stay as recorded.

    Args:
        graph: Is changed; its nodes still know the tensors that they were recorded with.
        inputs: Its inputs, without values.
    """
    targets = {node.target for node in graph.graph.nodes}
    if targets & _BOUND_TO_LAYOUT:
        return
    for node in graph.graph.find_nodes(op="call_function", target=aten.view.default):
        node.target = aten.reshape.default
    finder = _Finder(graph)
    finder.run(*inputs)
    for node in finder.found:
        image = node.args[0]
        assert isinstance(image, fx.Node)
        converted = _convert(graph, image, node, torch.channels_last)
        for user in list(image.users):
            if user is node or (
                user.target is aten.convolution_backward.default and user.args[1] is image
            ):
                user.replace_input_with(image, converted)
    output = graph.graph.output_node()
    for node in finder.moved_outputs:
        output.replace_input_with(node, _convert(graph, node, output, torch.contiguous_format))
    graph.recompile()


# What was recorded for one layout means something else in another.
_BOUND_TO_LAYOUT = {aten.as_strided.default, aten.as_strided_.default, aten.set_.source_Tensor}


def _convert(
    graph: fx.GraphModule, image: fx.Node, before: fx.Node, layout: torch.memory_format
) -> fx.Node:
    with graph.graph.inserting_before(before):
        converted = graph.graph.call_function(
            aten.clone.default, (image,), {"memory_format": layout}
        )
    converted.meta = dict(image.meta)
    return converted


class _Finder(fx.Interpreter):
    """Runs the graph without values, as if images had been converted, and notes where."""

    def __init__(self, graph: fx.GraphModule) -> None:
        super().__init__(graph)
        self.found: list[fx.Node] = []
        self.moved_outputs: list[fx.Node] = []

    def run_node(self, n: fx.Node) -> Any:
        if n.target is aten.convolution.default:
            image = self.env[n.args[0]]  # type: ignore[index]
            if image.dim() == 4 and not image.is_contiguous(memory_format=torch.channels_last):
                self.found.append(n)
                self.env[n.args[0]] = image.clone(memory_format=torch.channels_last)  # type: ignore[index]
        elif n.op == "output":
            self.moved_outputs = [
                node
                for node in dict.fromkeys(n.args[0])  # type: ignore[arg-type]
                if node.meta["val"].is_contiguous() and not self.env[node].is_contiguous()
            ]
        return super().run_node(n)
