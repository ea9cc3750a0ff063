"""Biases added where they cost nothing, instead of before each matrix product."""

from __future__ import annotations

import torch
from torch import fx

aten = torch.ops.aten


def add_biases_after_products(graph: fx.GraphModule) -> None:
    """Replace products with a bias by a product and an addition, on the CPU.

    There `addmm` first writes copies of the bias into each row of the result, and then has the
    product added to it. An addition afterwards becomes part of the loop of what follows.
    """
    for node in graph.graph.find_nodes(op="call_function", target=aten.addmm.default):
        bias, first, second = node.args
        value = node.meta["val"]
        if value.device.type != "cpu" or bias.meta["val"].shape == value.shape or node.kwargs:
            continue
        with graph.graph.inserting_before(node):
            product = graph.graph.call_function(aten.mm.default, (first, second))
            product.meta = dict(node.meta)
            total = graph.graph.call_function(aten.add.Tensor, (product, bias))
            total.meta = dict(node.meta)
        node.replace_all_uses_with(total)
        graph.graph.erase_node(node)
    graph.recompile()
