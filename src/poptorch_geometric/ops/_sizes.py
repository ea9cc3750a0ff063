"""Which edges a search without loops returns: static inside programs, PyG's outside."""

from __future__ import annotations

from torch import Tensor

from poptorch import isRunningOnIpu
from torchkiln.graphs import layers as _layers


def drop_missing(edges: Tensor) -> Tensor:
    """Return edges without those that lead nowhere, which plain PyG cannot use."""
    return edges if isRunningOnIpu() else _layers.drop_missing(edges)
