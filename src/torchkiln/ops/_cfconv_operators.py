"""The operators behind `cfconv`, each with a plain form, a native kernel and its derivatives.

Convolution is linear in features, filters and table, and a derivative by distance only changes the
weights of knots. So the derivatives of these five sums are these five sums again, to any order:
training on forces needs no second implementation. `order` counts derivatives by distance, `scale`
multiplies the filter of each edge, `reverse` turns messages round.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from torchkiln.ops import _cfconv_reference as reference
from torchkiln.ops._cfconv_edges import Edges, Places, check_edges
from torchkiln.ops._define import define_operator

# The fourth derivative of a cubic is 0.
_LAST_ORDER = 3


def _edges(index: Tensor, batch: Tensor, ways: Tensor | None, reverse: bool) -> Edges:
    """Return edges for plain torch, checked as kernels do on the CPU."""
    if index.device.type == "cpu":
        check_edges(index, batch)
    return Edges(index, batch, ways, reverse)


@define_operator("cfconv", native="_cfconv")
def convolve(
    x: Tensor, filters: Tensor, index: Tensor, batch: Tensor, ways: Tensor | None, reverse: bool
) -> Tensor:
    """Return the sum of messages at each node, [num_nodes, num_features]."""
    return reference.convolve(x, filters, _edges(index, batch, ways, reverse))


@define_operator("cfconv_edge_products", native="_cfconv")
def edge_products(
    x: Tensor, grad: Tensor, index: Tensor, batch: Tensor, ways: Tensor | None, reverse: bool
) -> Tensor:
    """Return, for each edge, x where its message comes from times grad where it goes."""
    return reference.edge_products(x, grad, _edges(index, batch, ways, reverse))


@define_operator("cfconv_table", native="_cfconv")
def convolve_table(
    x: Tensor,
    table: Tensor,
    distances: Tensor,
    scale: Tensor | None,
    index: Tensor,
    batch: Tensor,
    ways: Tensor | None,
    spacing: float,
    order: int,
    reverse: bool,
) -> Tensor:
    """Return the sum of messages at each node, with filters from a table."""
    filters = reference.interpolate(table, Places(distances, scale, len(table), spacing, order))
    return reference.convolve(x, filters, _edges(index, batch, ways, reverse))


@define_operator("cfconv_table_gradient", native="_cfconv")
def table_gradient(
    x: Tensor,
    grad: Tensor,
    distances: Tensor,
    scale: Tensor | None,
    num_knots: int,
    index: Tensor,
    batch: Tensor,
    ways: Tensor | None,
    spacing: float,
    order: int,
    reverse: bool,
) -> Tensor:
    """Return edge products summed into the knots of each edge, [num_knots, num_features]."""
    products = reference.edge_products(x, grad, _edges(index, batch, ways, reverse))
    places = Places(distances, scale, num_knots, spacing, order)
    return reference.table_gradient(products, places)


@define_operator("cfconv_table_backward", native="_cfconv")
def table_backward(
    x: Tensor,
    grad: Tensor,
    table: Tensor,
    distances: Tensor,
    scale: Tensor | None,
    index: Tensor,
    batch: Tensor,
    ways: Tensor | None,
    spacing: float,
    order: int,
    reverse: bool,
) -> tuple[Tensor, Tensor]:
    """Return the gradients of `convolve_table` by x and table, in one pass over the edges."""
    edges = _edges(index, batch, ways, reverse)
    places = Places(distances, scale, len(table), spacing, order)
    filters = reference.interpolate(table, places)
    products = reference.edge_products(x, grad, edges)
    return (
        reference.convolve(grad, filters, edges._replace(reverse=not reverse)),
        reference.table_gradient(products, places),
    )


@define_operator("cfconv_edge_dots", native="_cfconv")
def edge_dots(
    x: Tensor,
    grad: Tensor,
    table: Tensor,
    distances: Tensor,
    scale: Tensor | None,
    index: Tensor,
    batch: Tensor,
    ways: Tensor | None,
    spacing: float,
    order: int,
    reverse: bool,
) -> Tensor:
    """Return the sum over features of edge products times filters, [num_edges]."""
    products = reference.edge_products(x, grad, _edges(index, batch, ways, reverse))
    filters = reference.interpolate(table, Places(distances, scale, len(table), spacing, order))
    return (products * filters).sum(1)


@torch.library.register_fake("torchkiln::cfconv")
@torch.library.register_fake("torchkiln::cfconv_table")
def _(x: Tensor, *others: Any) -> Tensor:
    return x.new_empty(x.shape)


@torch.library.register_fake("torchkiln::cfconv_edge_products")
def _(x: Tensor, grad: Tensor, index: Tensor, *others: Any) -> Tensor:
    return x.new_empty((index.shape[1], x.shape[1]))


@torch.library.register_fake("torchkiln::cfconv_table_gradient")
def _(
    x: Tensor, grad: Tensor, distances: Tensor, scale: Tensor | None, num_knots: int, *others: Any
) -> Tensor:
    return x.new_empty((num_knots, x.shape[1]))


@torch.library.register_fake("torchkiln::cfconv_table_backward")
def _(x: Tensor, grad: Tensor, table: Tensor, *others: Any) -> tuple[Tensor, Tensor]:
    return x.new_empty(x.shape), x.new_empty(table.shape)


@torch.library.register_fake("torchkiln::cfconv_edge_dots")
def _(x: Tensor, grad: Tensor, table: Tensor, distances: Tensor, *others: Any) -> Tensor:
    return x.new_empty(distances.shape)


def _remember(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(*(value for value in inputs if isinstance(value, Tensor)))
    ctx.rest = [None if isinstance(value, Tensor) else value for value in inputs]
    ctx.is_tensor = [isinstance(value, Tensor) for value in inputs]


def _recall(ctx: Any) -> list[Any]:
    saved = iter(ctx.saved_tensors)
    pairs = zip(ctx.rest, ctx.is_tensor, strict=True)
    return [next(saved) if is_tensor else value for value, is_tensor in pairs]


def _grads(ctx: Any, *makers: Any) -> tuple[Tensor | None, ...]:
    """Return the gradients that somebody needs; `makers` are those of the first inputs."""
    needed = ctx.needs_input_grad
    made = [make() if need else None for make, need in zip(makers, needed, strict=False)]
    return (*made, *[None] * (len(needed) - len(made)))


def _convolve_backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    x, filters, *edges, reverse = _recall(ctx)
    return _grads(
        ctx,
        lambda: convolve(grad, filters, *edges, not reverse),
        lambda: edge_products(x, grad, *edges, reverse),
    )


def _edge_products_backward(ctx: Any, grad_products: Tensor) -> tuple[Tensor | None, ...]:
    x, grad, *edges, reverse = _recall(ctx)
    return _grads(
        ctx,
        lambda: convolve(grad, grad_products, *edges, not reverse),
        lambda: convolve(x, grad_products, *edges, reverse),
    )


def _convolve_table_backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    x, table, distances, scale, *edges, spacing, order, reverse = _recall(ctx)
    # In one pass, unless they will be differentiated themselves, which single sums can.
    both: tuple[Tensor, ...] = ()
    if all(ctx.needs_input_grad[:2]) and not torch.is_grad_enabled():
        both = table_backward(x, grad, table, distances, scale, *edges, spacing, order, reverse)
    return _grads(
        ctx,
        lambda: (
            both[0]
            if both
            else convolve_table(grad, table, distances, scale, *edges, spacing, order, not reverse)
        ),
        lambda: (
            both[1]
            if both
            else table_gradient(
                x, grad, distances, scale, len(table), *edges, spacing, order, reverse
            )
        ),
        lambda: _slopes(x, grad, table, distances, scale, *edges, spacing, order, reverse),
        lambda: edge_dots(x, grad, table, distances, None, *edges, spacing, order, reverse),
    )


def _table_gradient_backward(ctx: Any, grad_table: Tensor) -> tuple[Tensor | None, ...]:
    x, grad, distances, scale, _, *edges, spacing, order, reverse = _recall(ctx)
    return _grads(
        ctx,
        lambda: convolve_table(
            grad, grad_table, distances, scale, *edges, spacing, order, not reverse
        ),
        lambda: convolve_table(x, grad_table, distances, scale, *edges, spacing, order, reverse),
        lambda: _slopes(x, grad, grad_table, distances, scale, *edges, spacing, order, reverse),
        lambda: edge_dots(x, grad, grad_table, distances, None, *edges, spacing, order, reverse),
    )


def _edge_dots_backward(ctx: Any, grad_dots: Tensor) -> tuple[Tensor | None, ...]:
    x, grad, table, distances, scale, *edges, spacing, order, reverse = _recall(ctx)
    factor = grad_dots if scale is None else grad_dots * scale
    return _grads(
        ctx,
        lambda: convolve_table(grad, table, distances, factor, *edges, spacing, order, not reverse),
        lambda: convolve_table(x, table, distances, factor, *edges, spacing, order, reverse),
        lambda: table_gradient(
            x, grad, distances, factor, len(table), *edges, spacing, order, reverse
        ),
        lambda: _slopes(x, grad, table, distances, factor, *edges, spacing, order, reverse),
        lambda: (
            grad_dots * edge_dots(x, grad, table, distances, None, *edges, spacing, order, reverse)
        ),
    )


def _slopes(*arguments: Any) -> Tensor:
    """Return the derivative by distance of `edge_dots` with these arguments."""
    *tensors, spacing, order, reverse = arguments
    if order == _LAST_ORDER:
        return torch.zeros_like(tensors[3])
    return edge_dots(*tensors, spacing, order + 1, reverse)


for _name, _backward in {
    "cfconv": _convolve_backward,
    "cfconv_edge_products": _edge_products_backward,
    "cfconv_table": _convolve_table_backward,
    "cfconv_table_gradient": _table_gradient_backward,
    "cfconv_edge_dots": _edge_dots_backward,
}.items():
    torch.library.register_autograd(f"torchkiln::{_name}", _backward, setup_context=_remember)
