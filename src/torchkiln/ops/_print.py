"""Printing a tensor, and its gradient, whenever a program computes it."""

from __future__ import annotations

import sys
from dataclasses import astuple, dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchkiln.core import to_choice

_MODES = ("auto", "fixed", "scientific", "none")


@dataclass(frozen=True, slots=True)
class PrintFormat:
    """How values are written.

    Args:
        threshold: Tensors of more elements are summarised.
        edge_items: Entries at each end of a summarised dimension.
        line_width: Characters after which a line is broken.
        digits: Digits after the decimal point.
        mode: `auto`, `fixed`, `scientific` or `none` (every digit that counts).
        separator: Between entries.
        opening: Before the entries of a dimension.
        closing: After them.
    """

    threshold: int = 1000
    edge_items: int = 3
    line_width: int = 80
    digits: int = 4
    mode: str = "auto"
    separator: str = ", "
    opening: str = "("
    closing: str = ")"

    def __post_init__(self) -> None:
        to_choice(_MODES, self.mode, "the float format")


def print_tensor(
    tensor: Tensor, title: str, *, with_gradient: bool = True, style: PrintFormat | None = None
) -> Tensor:
    """Return a copy of `tensor` that is written to stderr each time it is computed.

    The gradient is written as `<title>_gradient`. Nothing is written if the result is not used.
    """
    return _print_tensor(tensor, title, with_gradient, *astuple(style or PrintFormat()))


def format_tensor(tensor: Tensor, style: PrintFormat) -> str:
    """Return the values of `tensor` as text."""
    values = tensor.detach().cpu()
    if values.dtype in (torch.bfloat16, torch.float16):
        values = values.float()
    spelling: dict[str, Any] = {}
    if values.is_floating_point() and style.mode != "auto":
        code = {"fixed": f".{style.digits}f", "scientific": f".{style.digits}e", "none": ""}
        spelling["formatter"] = {"float_kind": lambda value: format(value, code[style.mode])}
    text = np.array2string(
        values.numpy(),
        max_line_width=style.line_width,
        precision=style.digits,
        threshold=style.threshold,
        edgeitems=style.edge_items,
        separator=style.separator,
        floatmode="fixed",
        **spelling,
    )
    return text.replace("[", style.opening).replace("]", style.closing)


@torch.library.custom_op("torchkiln::print_tensor", mutates_args=())
def _print_tensor(
    tensor: Tensor,
    title: str,
    with_gradient: bool,
    threshold: int,
    edge_items: int,
    line_width: int,
    digits: int,
    mode: str,
    separator: str,
    opening: str,
    closing: str,
) -> Tensor:
    style = PrintFormat(
        threshold, edge_items, line_width, digits, mode, separator, opening, closing
    )
    prefix = f"{title}: " if title else ""
    sys.stderr.write(f"{prefix}{format_tensor(tensor, style)}\n")
    return tensor.clone()


@_print_tensor.register_fake
def _(tensor: Tensor, *settings: Any) -> Tensor:
    return torch.empty_like(tensor)


def _remember(ctx, inputs, output) -> None:  # type: ignore[no-untyped-def]
    ctx.settings = inputs[1:]


def _backward(ctx, grad):  # type: ignore[no-untyped-def]
    title, with_gradient, *style = ctx.settings
    if with_gradient:
        grad = _print_tensor(grad, f"{title}_gradient", False, *style)
    return (grad, *([None] * len(ctx.settings)))


_print_tensor.register_autograd(_backward, setup_context=_remember)
