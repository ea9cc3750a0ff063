"""How much arithmetic a recorded node is, from the shapes of what it reads and writes."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx
from torch.utils.flop_counter import flop_registry, sdpa_backward_flop_count, sdpa_flop_count

from torchkiln.torch_internals._autograd import schema_of
from torchkiln.torch_internals._fx import tensors_in

# Floats that a value of a spline takes, for each feature: four products and sums.
_SPLINE_FLOPS = 8


def flops_of(node: fx.Node) -> int:
    """Return the floating-point operations of a node; a sum and a product are two of them.

    Products of matrices, convolutions and attention by torch's own formulas, our operators by
    theirs; of anything else, one operation for each element that it makes or reads, whichever are
    more. Filler counts like everything else: it is computed, too.
    """
    if node.op != "call_function" or is_view(node):
        return 0
    arguments = [_value(argument) for argument in node.args]
    keywords = {name: _value(value) for name, value in node.kwargs.items()}
    result = node.meta.get("val")  # nodes that a pass put in have none
    packet = getattr(node.target, "overloadpacket", None)
    own = _OWN.get(_name(node)) or _ATTENTION.get(str(packet))
    if own is not None:
        return int(own(arguments, tensors_in(result)))
    formula = flop_registry.get(packet)
    if formula is not None:
        try:
            return int(formula(*arguments, **keywords, out_val=result))
        except (TypeError, ValueError, IndexError, AttributeError):
            pass  # an overload that the formula does not know
    if not _computes_floats(result):
        return 0
    made = sum(tensor.numel() for tensor in tensors_in(result))
    read = max((tensor.numel() for tensor in tensors_in([arguments, keywords])), default=0)
    return max(made, read)


def is_view(node: fx.Node) -> bool:
    """Whether a node only looks at memory in another way, or moves it without computing."""
    if node.target in _MOVES:
        return True
    schema = schema_of(node.target)
    if schema is None or schema.is_mutable:
        return False
    return any(result.alias_info is not None for result in schema.returns)


_MOVES = {
    torch.ops.aten.clone.default,
    torch.ops.aten.detach.default,
    torch.ops.aten.empty_like.default,
}


def _value(argument: Any) -> Any:
    """Return what a node gets: shapes instead of nodes."""
    return torch.fx.node.map_arg(argument, lambda node: node.meta.get("val"))


def _name(node: fx.Node) -> str:
    name = str(getattr(node.target, "overloadpacket", ""))
    return name.removeprefix("torchkiln.").removesuffix("_plain") if "torchkiln" in name else ""


def _computes_floats(result: Any) -> bool:
    return any(tensor.is_floating_point() for tensor in tensors_in(result))


# -- our own operators: arguments and results as lists -------------------------------------------


def _per_pair(arguments: list[Any], pairs: int) -> int:
    """One product and one sum for each feature, and each direction of a pair."""
    x = arguments[0]
    return 2 * 2 * pairs * int(x.shape[-1])


def _cfconv(arguments: list[Any], results: list[Tensor]) -> int:
    return _per_pair(arguments, arguments[1].shape[0])


def _edge_products(arguments: list[Any], results: list[Tensor]) -> int:
    return _per_pair(arguments, results[0].shape[0])


def _table(times: int, distances: int) -> Callable[[list[Any], list[Tensor]], int]:
    def count(arguments: list[Any], results: list[Tensor]) -> int:
        pairs, width = arguments[distances].shape[0], int(arguments[0].shape[-1])
        return times * _per_pair(arguments, pairs) + times * _SPLINE_FLOPS * pairs * width

    return count


def _mlp(arguments: list[Any], results: list[Tensor]) -> int:
    """Two products, or three."""
    rows = arguments[0].shape[0]
    weights = [arguments[1], arguments[3], arguments[6]]
    return sum(2 * rows * weight.numel() for weight in weights if weight is not None)


def _mlp_backward(arguments: list[Any], results: list[Tensor]) -> int:
    """For each layer a product for its input and one for its weights; hidden values once more."""
    rows = arguments[0].shape[0]
    weights = [
        weight for weight in (arguments[1], arguments[2], arguments[3]) if weight is not None
    ]
    wants_x, wants_layers = bool(arguments[8]), bool(arguments[9])
    times = 1 + int(wants_layers)
    total = sum(2 * times * rows * weight.numel() for weight in weights)
    return total if wants_x else total - 2 * rows * arguments[1].numel()


def _elements(arguments: list[Any], results: list[Tensor]) -> int:
    return max((t.numel() for t in tensors_in([arguments, results])), default=0)


def _scatter_sum(arguments: list[Any], results: list[Tensor]) -> int:
    """A sum for each row that goes somewhere, and a product where rows have factors."""
    x, index, weights = arguments[0], arguments[1], arguments[4:5]
    times = 2 if weights and weights[0] is not None else 1
    return times * int(index.numel()) * math.prod(x.shape[1:])


def _spline(arguments: list[Any], results: list[Tensor]) -> int:
    return _SPLINE_FLOPS * max(math.prod(arguments[0].shape), results[0].numel())


# On the CPU attention has operators of its own, which torch does not count.
_ATTENTION: dict[str, Callable[[list[Any], list[Tensor]], int]] = {
    "aten._scaled_dot_product_flash_attention_for_cpu": lambda arguments, results: sdpa_flop_count(
        *(value.shape for value in arguments[:3])
    ),
    "aten._scaled_dot_product_flash_attention_for_cpu_backward": lambda arguments, results: (
        sdpa_backward_flop_count(*(value.shape for value in arguments[:4]))
    ),
}

_OWN: dict[str, Callable[[list[Any], list[Tensor]], int]] = {
    "cfconv": _cfconv,
    "cfconv_edge_products": _edge_products,
    "cfconv_table": _table(1, distances=2),
    "cfconv_table_backward": _table(2, distances=3),
    "cfconv_table_gradient": _table(1, distances=2),
    "cfconv_edge_dots": _table(1, distances=3),
    "softplus_mlp": _mlp,
    "softplus_mlp_backward": _mlp_backward,
    "refine": _spline,
    "coarsen": _spline,
    "segment_sum": _elements,
    "scatter_sum": _scatter_sum,
    "scatter_extreme": _elements,
    "draw": lambda arguments, results: math.prod(arguments[3]),
}
