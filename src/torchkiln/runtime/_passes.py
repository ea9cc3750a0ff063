"""Changes to a captured graph that every backend profits from."""

from __future__ import annotations

import operator

import torch
from torch import Tensor, fx

from torchkiln.ops import bernoulli_is_exact
from torchkiln.ops._random import MIN_FAST_NUMEL

aten = torch.ops.aten
_FRESH = (aten.empty_like.default, aten.empty.memory_format, aten.new_empty.default)


def draw_dropout_masks_in_blocks(graph: fx.GraphModule) -> None:
    """Let large dropout masks come from the block generator: the same bits, much sooner."""
    token: fx.Node | None = None
    for node in list(graph.graph.nodes):
        if not _is_large_mask(node) or not bernoulli_is_exact():
            continue
        # Recorded calls leave out arguments that equal the default.
        fresh, p = (*node.args, 0.5)[:2]
        with graph.graph.inserting_before(node):
            drawn = graph.graph.call_function(
                torch.ops.torchkiln.bernoulli.default, (token, list(node.meta["val"].shape), p)
            )
            mask = graph.graph.call_function(operator.getitem, (drawn, 0))
            token = graph.graph.call_function(operator.getitem, (drawn, 1))
        mask.meta = dict(node.meta)
        node.replace_all_uses_with(mask)
        graph.graph.erase_node(node)
        graph.graph.erase_node(fresh)


def _is_large_mask(node: fx.Node) -> bool:
    """Whether a node fills a new float32 CPU tensor of some size with Bernoulli samples."""
    if node.target is not aten.bernoulli_.float or node.kwargs:
        return False
    fresh, value = node.args[0], node.meta.get("val")
    return (
        isinstance(fresh, fx.Node)
        and fresh.target in _FRESH
        and len(fresh.users) == 1
        and isinstance(value, Tensor)
        and value.device.type == "cpu"
        and value.dtype == torch.float32
        and value.is_contiguous()
        and value.numel() >= MIN_FAST_NUMEL
    )


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
