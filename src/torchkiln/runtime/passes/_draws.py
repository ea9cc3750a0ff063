"""Random operators as draws that keep eager PyTorch's order and numbers."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import Tensor, fx

from torchkiln.runtime.passes._calls import arguments_of
from torchkiln.torch_internals._autograd import schema_of

aten = torch.ops.aten
_FRESH = (
    aten.empty_like.default,
    aten.empty.memory_format,
    aten.empty_strided.default,
    aten.new_empty.default,
)
# Random operators: what `torchkiln::draw` calls them, and where it finds its parameters.
_DRAWS: dict[Any, tuple[str, tuple[str | float, ...]]] = {
    aten.bernoulli_.float: ("bernoulli", ("p",)),
    aten.bernoulli.default: ("bernoulli_of", ()),
    aten.uniform_.default: ("uniform", ("from", "to")),
    aten.rand.default: ("uniform", (0.0, 1.0)),
    aten.rand_like.default: ("uniform", (0.0, 1.0)),
    aten.normal_.default: ("normal", ("mean", "std")),
    aten.randn.default: ("normal", (0.0, 1.0)),
    aten.randn_like.default: ("normal", (0.0, 1.0)),
    aten.exponential_.default: ("exponential", ("lambd",)),
    aten.randint.default: ("randint", (0.0, "high")),
    aten.randint.low: ("randint", ("low", "high")),
    aten.randint_like.default: ("randint", (0.0, "high")),
    aten.randint_like.low_dtype: ("randint", ("low", "high")),
    aten.randperm.default: ("randperm", ()),
}


def draw_in_order(graph: fx.GraphModule) -> None:
    """Replace random operators by draws that no compiler can reorder or lay out differently.

    Operators that are not in the table keep torch's own form; the numbers are then right, but their
    order among other draws is the compiler's.
    """
    token: fx.Node | None = None
    for node in list(graph.graph.nodes):
        if node.target not in _DRAWS or not _can_draw(node):
            continue
        kind, sources = _DRAWS[node.target]
        given = arguments_of(node)
        value: Tensor = node.meta["val"]
        params = [float(given[s]) if isinstance(s, str) else s for s in sources]
        source = given["self"] if kind == "bernoulli_of" else None
        layout = (list(value.shape), list(value.stride()), value.dtype)
        with graph.graph.inserting_before(node):
            drawn = graph.graph.call_function(
                torch.ops.torchkiln.draw.default, (token, kind, source, *layout, params)
            )
            result = graph.graph.call_function(operator.getitem, (drawn, 0))
            token = graph.graph.call_function(operator.getitem, (drawn, 1))
            result.meta = dict(node.meta)
        for made in (drawn, token):
            # The token must not make one draw look like a part of another.
            made.meta["custom"] = node.meta.get("custom", {})
        _replace(graph, node, result)


def _replace(graph: fx.GraphModule, node: fx.Node, result: fx.Node) -> None:
    written = node.args[0] if schema_of(node.target).is_mutable else None
    if not isinstance(written, fx.Node):
        node.replace_all_uses_with(result)
        graph.graph.erase_node(node)
    elif written.target in _FRESH and len(written.users) == 1:
        node.replace_all_uses_with(result)
        graph.graph.erase_node(node)
        graph.graph.erase_node(written)
    else:
        # Somebody else sees this memory: write the numbers into it.
        node.target, node.args, node.kwargs = aten.copy_.default, (written, result), {}


def _can_draw(node: fx.Node) -> bool:
    value, given = node.meta.get("val"), arguments_of(node)
    return (
        isinstance(value, Tensor)
        and value.device.type == "cpu"
        and given.get("generator") is None
        and all(given[name] is not None for name in _DRAWS[node.target][1] if isinstance(name, str))
    )
