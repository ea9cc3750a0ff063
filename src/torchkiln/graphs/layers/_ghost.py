"""The ghost: one extra node behind all others, where edges go that must have no effect.

Removing edges changes a size; sending them to a node that is cut off afterwards does not, and is
exact for every aggregation (sum, mean, maximum, softmax), with or without filler in the batch.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def add_ghost(x: Any) -> Any:
    """Return `x` with a row of zeros at its end; pairs (source, target) get one each."""
    if isinstance(x, tuple | list):
        return tuple(add_ghost(entry) for entry in x)
    if x is None:
        return None
    return torch.cat([x, x.new_zeros(1, *x.shape[1:])])


def banish(edge_index: Tensor, banished: Tensor, num_nodes: tuple[int, int]) -> Tensor:
    """Return `edge_index` with the `banished` edges on the ghost; sizes are without the ghost."""
    row = torch.where(banished, num_nodes[0], edge_index[0])
    column = torch.where(banished, num_nodes[1], edge_index[1])
    return torch.stack([row, column])


def rows_of(x: Any) -> tuple[int, int]:
    """Return the numbers of source and target nodes of a tensor or a pair."""
    if not isinstance(x, tuple | list):
        return len(x), len(x)
    source, target = x
    if target is None:
        return len(source), len(source)
    return (len(target) if source is None else len(source)), len(target)
