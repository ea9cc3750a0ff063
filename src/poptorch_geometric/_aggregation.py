"""Explicit sizes for message passing."""

from __future__ import annotations

from typing import Any

from torch import nn
from torch_geometric.nn import MessagePassing


def set_aggregation_dim_size(model: nn.Module, dim_size: int) -> None:
    """Make every `MessagePassing` layer of `model` aggregate into `dim_size` rows.

    Args:
        model: Changed in place, by a hook on each layer.
        dim_size: At least the number of nodes.
    """

    def give_size(module: nn.Module, inputs: tuple[dict[str, Any], ...]) -> tuple[Any, ...]:
        *others, settings = inputs
        return (*others, {**settings, "dim_size": dim_size})

    for layer in model.modules():
        if isinstance(layer, MessagePassing):
            layer.register_aggregate_forward_pre_hook(give_size)
