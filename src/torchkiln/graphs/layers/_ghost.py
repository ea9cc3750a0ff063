"""The ghost: one extra node behind all others, where edges go that must have no effect.

Removing edges changes a size; sending them to a node that is cut off afterwards does not, and is
exact for every aggregation (sum, mean, maximum, softmax), with or without filler in the batch.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from torchkiln.graphs.layers._batch_form import BatchForm, current_form
from torchkiln.graphs.layers._batch_norm import MaskedBatchNorm1d
from torchkiln.graphs.layers._substitution import is_recording


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


def needs_ghost(layer: nn.Module) -> bool:
    """True where the number of edges in `layer` must be fixed; elsewhere it can do as PyG does.

    In ordinary PyTorch that is for masked norms inside it: they know rows by their number.
    """
    if is_recording():
        return True
    masked = any(isinstance(child, MaskedBatchNorm1d) for child in layer.modules())
    return masked and bool(current_form().masks)


def ghost_form(
    layer: nn.Module, edge_index: Tensor, banished: Tensor, num_nodes: tuple[int, int], loops: int
) -> BatchForm:
    """Return the form for the inside of `layer`, where norms must not count the ghost.

    There, edges have `loops` self-loops behind them and nodes the ghost. Filler edges end at filler
    nodes, so the mask of target nodes tells both; an edge mask serves where it is all there is.
    """
    form = current_form()
    if not any("Norm" in type(child).__name__ for child in layer.modules()):
        return form
    who = f"a norm inside {type(layer).__name__}"
    known = any(len(mask) == num_nodes[1] for mask in form.masks.values())
    edges = form.masks.get("edge")
    if form.masks and (known or edges is None or loops):
        nodes = form.mask_of(num_nodes[1], who)
        assert nodes is not None
        edges = nodes[edge_index[1].clamp(min=0)]
    else:
        nodes = torch.ones(num_nodes[1], dtype=torch.bool, device=edge_index.device)
        edges = torch.ones_like(banished) if edges is None else edges
    masks = {
        "edge": torch.cat([edges & ~banished, nodes[:loops]]),
        "node": torch.cat([nodes, nodes.new_zeros(1)]),
    }
    return replace(form, masks=masks)
