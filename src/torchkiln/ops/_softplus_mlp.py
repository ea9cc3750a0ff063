"""Two layers with a softplus between them, as one operator that leaves the cache once."""

from __future__ import annotations

import logging
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own habit
from torch import Tensor

from torchkiln.core import ArgumentError
from torchkiln.ops._define import define_operator

# Softplus is 0 at 0 when this is taken off. Rounded to float32, as in PyG: the same weights mean
# the same function.
_SHIFT = torch.tensor(2.0).log().item()
_log = logging.getLogger("torchkiln")


# Of x, y, first weights and bias, second weights and bias, third weights.
Gradients = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]


class Layer(NamedTuple):
    """Weights [outputs, inputs] and bias [outputs], as `torch.nn.Linear` has them."""

    weight: Tensor
    bias: Tensor


def softplus_mlp(
    x: Tensor,
    first: Layer,
    second: Layer,
    *,
    residual: Tensor | None = None,
    third: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Return `y = second(softplus(first(x)) - log 2) + residual`, and `y @ third.T`.

    In float32 on the CPU this is one native kernel: rows go through all layers while they are in
    the cache, and so do their gradients. Elsewhere plain torch computes the same. Derivatives of
    derivatives are computed in plain torch.

    Args:
        x: One row each, [num_rows, num_inputs].
        first: [num_hidden, num_inputs] and [num_hidden].
        second: [num_outputs, num_hidden] and [num_outputs].
        residual: [num_rows, num_outputs].
        third: Weights of a layer without bias, [num_last, num_outputs]; without one the second
            result is empty.

    Raises:
        ArgumentError: if shapes or dtypes do not fit.
    """
    _check(x, first, second, residual, third)
    compute = _forward if _is_native(x) else plain_softplus_mlp
    y, _, z = compute(x, *first, *second, residual, third)
    return y, z


def _is_native(x: Tensor) -> bool:
    # Elsewhere compilers see the single operations and fuse them as they like.
    return (
        x.device.type == "cpu" and x.dtype == torch.float32 and not torch.is_autocast_enabled("cpu")
    )


def plain_softplus_mlp(
    x: Tensor,
    first: Tensor,
    first_bias: Tensor,
    second: Tensor,
    second_bias: Tensor,
    residual: Tensor | None,
    third: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return y, what the hidden layer gives, and z, in plain torch."""
    hidden = F.softplus(F.linear(x, first, first_bias)) - _SHIFT
    y = F.linear(hidden, second, second_bias)
    y = y if residual is None else y + residual
    return y, hidden, x.new_empty(0) if third is None else F.linear(y, third)


def _check(
    x: Tensor,
    first: Layer,
    second: Layer,
    residual: Tensor | None,
    third: Tensor | None,
) -> None:
    rows, middle, outputs = x.shape[0], first.weight.shape[0], second.weight.shape[0]
    wanted: dict[str, tuple[Tensor | None, tuple[int, ...]]] = {
        "x": (x, (rows, first.weight.shape[-1])),
        "first.bias": (first.bias, (middle,)),
        "second.weight": (second.weight, (outputs, middle)),
        "second.bias": (second.bias, (outputs,)),
        "residual": (residual, (rows, outputs)),
        "third": (third, (0 if third is None else third.shape[0], outputs)),
    }
    for name, (tensor, shape) in wanted.items():
        if tensor is not None and (tensor.shape != shape or tensor.dtype != first.weight.dtype):
            raise ArgumentError(
                f"{name} must be {list(shape)} of {first.weight.dtype} to fit the other arguments, "
                f"got {list(tensor.shape)} of {tensor.dtype}"
            )


@define_operator("softplus_mlp", native="_softplus_mlp")
def _forward(
    x: Tensor,
    first: Tensor,
    first_bias: Tensor,
    second: Tensor,
    second_bias: Tensor,
    residual: Tensor | None,
    third: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:
    return plain_softplus_mlp(x, first, first_bias, second, second_bias, residual, third)


@torch.library.register_fake("torchkiln::softplus_mlp")
def _new_results(
    x: Tensor, first: Tensor, _: Tensor, second: Tensor, *others: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    rows, third = x.shape[0], others[-1]
    return (
        x.new_empty((rows, second.shape[0])),
        x.new_empty((rows, first.shape[0])),
        x.new_empty(0) if third is None else x.new_empty((rows, third.shape[0])),
    )


@define_operator("softplus_mlp_backward", native="_softplus_mlp")
def _backward(
    x: Tensor,
    first: Tensor,
    second: Tensor,
    third: Tensor | None,
    y: Tensor,
    hidden: Tensor,
    grad_y: Tensor | None,
    grad_z: Tensor | None,
    wants_x: bool,
    wants_layers: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Return the gradients of x, y (all of it), both layers and the third; empty: as given."""
    grad = torch.zeros_like(y) if grad_y is None else grad_y
    none = x.new_empty(0)
    grad_residual, grad_third = none, none
    if third is not None and grad_z is not None:
        grad = grad_residual = grad + grad_z @ third
        grad_third = grad_z.T @ y if wants_layers else none
    grad_hidden = (grad @ second) * -torch.expm1(-(hidden + _SHIFT))
    return (
        grad_hidden @ first if wants_x else none,
        grad_residual,
        *(
            (grad_hidden.T @ x, grad_hidden.sum(0), grad.T @ hidden, grad.sum(0))
            if wants_layers
            else (none,) * 4
        ),
        grad_third,
    )


@torch.library.register_fake("torchkiln::softplus_mlp_backward")
def _new_grads(*given: Any) -> Gradients:
    x, first, second, third, y, _, _, grad_z, wants_x, wants_layers = given
    follows = third is not None and grad_z is not None
    return (
        x.new_empty(x.shape if wants_x else 0),
        x.new_empty(y.shape if follows else 0),
        x.new_empty(first.shape if wants_layers else 0),
        x.new_empty(first.shape[0] if wants_layers else 0),
        x.new_empty(second.shape if wants_layers else 0),
        x.new_empty(second.shape[0] if wants_layers else 0),
        x.new_empty(third.shape if follows and wants_layers else 0),
    )


def _remember(ctx: Any, inputs: tuple[Tensor | None, ...], output: tuple[Tensor, ...]) -> None:
    y, hidden, _ = output
    ctx.save_for_backward(*inputs, y, hidden)
    ctx.mark_non_differentiable(hidden)
    ctx.set_materialize_grads(False)


def _differentiate(
    ctx: Any, grad_y: Tensor | None, _: Tensor | None, grad_z: Tensor | None
) -> tuple[Tensor | None, ...]:
    *inputs, y, hidden = ctx.saved_tensors
    x, first, _, second, _, residual, third = inputs
    if third is None:
        grad_z = None
    if grad_y is None and grad_z is None:
        return (None,) * len(inputs)
    if torch.is_grad_enabled():
        return _differentiate_plainly(inputs, ctx.needs_input_grad, (grad_y, grad_z))
    wants_x, *wants_layer = ctx.needs_input_grad[:5]
    wants_layers = any(wants_layer) or ctx.needs_input_grad[-1]
    grad_x, grad_all, *layers, grad_third = _backward(
        x, first, second, third, y, hidden, grad_y, grad_z, wants_x, wants_layers
    )
    return (
        grad_x if wants_x else None,
        *(layers if wants_layers else [None] * len(layers)),
        None if residual is None else grad_y if grad_z is None else grad_all,
        grad_third if wants_layers and grad_z is not None else None,
    )


def _differentiate_plainly(
    inputs: list[Tensor | None], needed: tuple[bool, ...], grads: tuple[Tensor | None, ...]
) -> tuple[Tensor | None, ...]:
    """Return gradients that can be differentiated again."""
    _log.debug("softplus_mlp: derivatives of derivatives are computed in plain torch")
    wanted = [t for t, need in zip(inputs, needed, strict=True) if need and t is not None]
    y, _, z = plain_softplus_mlp(*inputs)  # type: ignore[arg-type]
    used = [(out, grad) for out, grad in zip((y, z), grads, strict=True) if grad is not None]
    outs, given = zip(*used, strict=True)
    found = iter(torch.autograd.grad(outs, wanted, given, create_graph=True, allow_unused=True))
    return tuple(next(found) if need else None for need in needed)


torch.library.register_autograd("torchkiln::softplus_mlp", _differentiate, setup_context=_remember)
