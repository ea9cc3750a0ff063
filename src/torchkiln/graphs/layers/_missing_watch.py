"""A warning where a table with missing neighbours (-1) enters a layer that does not mask them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from torch import Tensor, nn

from torchkiln.core import warn_user

_MARK = "_torchkiln_may_miss"
# These mask entries of -1 in programs, and so do layers derived from them.
_MASKING = frozenset({"EdgeConv", "DynamicEdgeConv", "CFConv", "GravNetConv", "XConv"})


def may_miss(edge_index: Tensor) -> Tensor:
    """Mark a table that may hold -1; what is computed from it is not marked."""
    setattr(edge_index, _MARK, True)
    return edge_index


@contextlib.contextmanager
def watching_missing() -> Iterator[None]:
    """Warn once if a marked table is an argument of a layer that would use -1 as an index.

    Native code does not check indices: numbers would be wrong without an error.
    """
    from torch_geometric.nn import MessagePassing

    warned = False

    def look(layer: nn.Module, args: tuple[Any, ...]) -> None:
        nonlocal warned
        if warned or not isinstance(layer, MessagePassing):
            return
        if any(kind.__name__ in _MASKING for kind in type(layer).__mro__):
            return
        if any(getattr(argument, _MARK, False) for argument in args):
            warned = True
            warn_user(
                f"{type(layer).__name__} gets the edges of a static knn_graph or radius_graph, "
                "where missing neighbours are -1, and takes them for nodes; send them to a filler "
                "node first: torchkiln.graphs.route_missing(edge_index, num_nodes - 1)"
            )

    handle = nn.modules.module.register_module_forward_pre_hook(look)
    try:
        yield
    finally:
        handle.remove()
