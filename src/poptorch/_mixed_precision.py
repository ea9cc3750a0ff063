"""The original's rules for half and float operands that torch refuses to combine."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

_MIXABLE = (torch.float16, torch.float32)
_LAYERS = frozenset(
    {
        functional.linear,
        functional.conv1d,
        functional.conv2d,
        functional.conv3d,
        functional.conv_transpose1d,
        functional.conv_transpose2d,
        functional.conv_transpose3d,
    }
)
_PRODUCTS = frozenset(
    {
        torch.bmm,
        torch.matmul,
        torch.mm,
        Tensor.__matmul__,
        Tensor.__rmatmul__,
        Tensor.bmm,
        Tensor.matmul,
        Tensor.mm,
    }
)


class MixedPrecision(TorchFunctionMode):
    """While entered, linear layers, convolutions and attention compute in their input's dtype.

    A half input casts float weights down, a float input casts half weights up. Products of a half
    and a float matrix are float, as sums of the two are in torch itself.
    """

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if func in _LAYERS:
            args, kwargs = _cast_weights(args, kwargs)
        elif func is functional.multi_head_attention_forward:
            args, kwargs = _cast_all(args, kwargs, args[0])
        elif func in _PRODUCTS:
            args, kwargs = _promote(args, kwargs)
        return func(*args, **kwargs)


def _cast_weights(
    args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    values: Any = args[0] if args else kwargs.get("input")
    # Autocast decides the dtype of every operand itself.
    if not _is_mixable(values) or torch.is_autocast_enabled(values.device.type):
        return args, kwargs
    weights = [_cast(operand, values.dtype) for operand in args[1:3]]
    named = {name: _cast(kwargs[name], values.dtype) for name in ("weight", "bias") & kwargs.keys()}
    return (*args[:1], *weights, *args[3:]), kwargs | named


def _promote(
    args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    operands = [value for value in (*args, *kwargs.values()) if _is_mixable(value)]
    wide = next((operand for operand in operands if operand.dtype is torch.float32), None)
    return _cast_all(args, kwargs, wide)


def _cast_all(
    args: tuple[Any, ...], kwargs: dict[str, Any], like: Any
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if not _is_mixable(like) or torch.is_autocast_enabled(like.device.type):
        return args, kwargs
    return (
        tuple(_cast(value, like.dtype) for value in args),
        {name: _cast(value, like.dtype) for name, value in kwargs.items()},
    )


def _is_mixable(value: Any) -> bool:
    return isinstance(value, Tensor) and value.dtype in _MIXABLE


def _cast(value: Any, dtype: torch.dtype) -> Any:
    return value.to(dtype) if _is_mixable(value) else value
