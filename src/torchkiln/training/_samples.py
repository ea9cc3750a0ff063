"""How many samples a batch holds, filler left out."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from torchkiln.core import OptionsError
from torchkiln.data import flatten


def count_samples(batch: Any, num_parts: int) -> Tensor:
    """Return the number of real samples in each mini-batch of a combined batch.

    Graphs of a fixed-size batch are counted by its `graph_mask`, anything else by the rows of its
    first tensor.

    Raises:
        OptionsError: There is no tensor in the batch.
    """
    mask = next(_masks(batch), None)
    if mask is not None:
        return mask.view(num_parts, -1).sum(dim=1).cpu()
    tensors, _ = flatten(batch)
    if not tensors or not tensors[0].ndim:
        raise OptionsError(
            f"a batch must begin with a tensor that has a row for each sample, got {batch!r:.80}"
        )
    rows = tensors[0].shape[0]
    return torch.full((num_parts,), rows // num_parts)


def _masks(batch: Any) -> Iterator[Tensor]:
    parts = batch if isinstance(batch, tuple | list) else (batch,)
    for part in parts:
        mask = (
            part.get("graph_mask") if isinstance(part, dict) else getattr(part, "graph_mask", None)
        )
        if isinstance(mask, Tensor):
            yield mask
