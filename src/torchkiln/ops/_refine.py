"""Rows of a finer grid from rows of a coarse one."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor

from torchkiln.core import ArgumentError
from torchkiln.ops._define import define_operator

PHASES = 4


def refine(x: Tensor, weights: Tensor, num_rows: int, *, scale: Tensor | None = None) -> Tensor:
    """Return rows of a grid that is four times as fine, [num_rows, num_features].

    Row `4 q + s` is the sum over t of `weights[s, t] * scale[q + t] * x[q + t]`. Any order of
    derivatives by `x`.

    Args:
        x: Rows of the coarse grid, [num_coarse, num_features].
        weights: Constants, [4, num_taps].
        num_rows: How many; `num_coarse` must be at least a fourth of them plus `num_taps - 1`.
        scale: Constants, [num_coarse]; default: ones.

    Raises:
        ArgumentError: if shapes or dtypes do not fit.
    """
    if x.dim() != 2 or weights.dim() != 2 or len(weights) != PHASES or weights.dtype != x.dtype:
        raise ArgumentError(
            f"x must be [num_coarse, num_features] and weights [{PHASES}, num_taps] of the same "
            f"dtype, got {list(x.shape)} of {x.dtype} and {list(weights.shape)} of {weights.dtype}"
        )
    if scale is None:
        scale = x.new_ones(len(x))
    elif scale.shape != x.shape[:1] or scale.dtype != x.dtype:
        raise ArgumentError(
            f"scale must be [{len(x)}] of {x.dtype}, one for each row of x, got "
            f"{list(scale.shape)} of {scale.dtype}"
        )
    least = -(-num_rows // PHASES) + weights.shape[1] - 1
    if num_rows < 1 or len(x) < least:
        raise ArgumentError(
            f"{num_rows} rows are made of at least {least} coarse ones, got {len(x)}; give more, "
            "or ask for fewer"
        )
    return _refine(x, weights, scale, num_rows)


def _plain(x: Tensor, weights: Tensor, scale: Tensor, num_rows: int) -> Tensor:
    windows = (x * scale[:, None]).unfold(0, weights.shape[1], 1)
    return torch.einsum("qft,st->qsf", windows, weights).flatten(0, 1)[:num_rows]


@define_operator("refine", native="_refine")
def _refine(x: Tensor, weights: Tensor, scale: Tensor, num_rows: int) -> Tensor:
    return _plain(x, weights, scale, num_rows).contiguous()


@define_operator("coarsen", native="_refine")
def _coarsen(grad: Tensor, weights: Tensor, scale: Tensor) -> Tensor:
    """Return the transpose of `refine`, applied to `grad`."""
    like = grad.new_zeros((len(scale), grad.shape[1]))
    transpose = torch.func.vjp(lambda x: _plain(x, weights, scale, len(grad)), like)[1]
    return cast(Tensor, transpose(grad)[0]).contiguous()


@torch.library.register_fake("torchkiln::refine")
def _(x: Tensor, weights: Tensor, scale: Tensor, num_rows: int) -> Tensor:
    return x.new_empty((num_rows, x.shape[1]))


@torch.library.register_fake("torchkiln::coarsen")
def _(grad: Tensor, weights: Tensor, scale: Tensor) -> Tensor:
    return grad.new_empty((len(scale), grad.shape[1]))


def _remember(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    _, weights, scale, *_ = inputs
    ctx.save_for_backward(weights, scale)
    ctx.num_rows = len(inputs[0])


def _differentiate(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
    return _coarsen(grad, *ctx.saved_tensors), None, None, None


def _differentiate_transpose(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
    return _refine(grad, *ctx.saved_tensors, ctx.num_rows), None, None


for _name, _backward in (("refine", _differentiate), ("coarsen", _differentiate_transpose)):
    torch.library.register_autograd(f"torchkiln::{_name}", _backward, setup_context=_remember)
