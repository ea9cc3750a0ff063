"""Rows of a finer grid from rows of a coarse one."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor

from torchkiln.core import ArgumentError
from torchkiln.ops._define import define_operator

PHASES = 4


def refine(x: Tensor, weights: Tensor, num_rows: int) -> Tensor:
    """Return rows of a grid that is four times as fine, [num_rows, num_features].

    Row `4 q + s` is the sum over t of `weights[s, t] * x[q + t]`. Any order of derivatives by `x`.

    Args:
        x: Rows of the coarse grid, [num_coarse, num_features].
        weights: Constants, [4, num_taps].
        num_rows: How many; `num_coarse` must be at least a fourth of them plus `num_taps - 1`.

    Raises:
        ArgumentError: if shapes or dtypes do not fit.
    """
    if x.dim() != 2 or weights.dim() != 2 or len(weights) != PHASES or weights.dtype != x.dtype:
        raise ArgumentError(
            f"x must be [num_coarse, num_features] and weights [{PHASES}, num_taps] of the same "
            f"dtype, got {list(x.shape)} of {x.dtype} and {list(weights.shape)} of {weights.dtype}"
        )
    least = -(-num_rows // PHASES) + weights.shape[1] - 1
    if num_rows < 1 or len(x) < least:
        raise ArgumentError(
            f"{num_rows} rows are made of at least {least} coarse ones, got {len(x)}; give more, "
            "or ask for fewer"
        )
    return _refine(x, weights, num_rows)


def _plain(x: Tensor, weights: Tensor, num_rows: int) -> Tensor:
    windows = x.unfold(0, weights.shape[1], 1)
    return torch.einsum("qft,st->qsf", windows, weights).flatten(0, 1)[:num_rows]


@define_operator("refine", native="_refine")
def _refine(x: Tensor, weights: Tensor, num_rows: int) -> Tensor:
    return _plain(x, weights, num_rows).contiguous()


@define_operator("coarsen", native="_refine")
def _coarsen(grad: Tensor, weights: Tensor, num_coarse: int) -> Tensor:
    """Return the transpose of `refine`, applied to `grad`."""
    like = grad.new_zeros((num_coarse, grad.shape[1]))
    transpose = torch.func.vjp(lambda x: _plain(x, weights, len(grad)), like)[1]
    return cast(Tensor, transpose(grad)[0]).contiguous()


@torch.library.register_fake("torchkiln::refine")
@torch.library.register_fake("torchkiln::coarsen")
def _(x: Tensor, weights: Tensor, num_rows: int) -> Tensor:
    return x.new_empty((num_rows, x.shape[1]))


def _remember(ctx: Any, inputs: tuple[Tensor, Tensor, int], output: Tensor) -> None:
    x, weights, _ = inputs
    ctx.save_for_backward(weights)
    ctx.num_rows = len(x)


def _differentiate(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
    return _coarsen(grad, *ctx.saved_tensors, ctx.num_rows), None, None


def _differentiate_transpose(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
    return _refine(grad, *ctx.saved_tensors, ctx.num_rows), None, None


for _name, _backward in (("refine", _differentiate), ("coarsen", _differentiate_transpose)):
    torch.library.register_autograd(f"torchkiln::{_name}", _backward, setup_context=_remember)
