"""Recomputed operations at the last moment: right before backward reads them.

`torch.utils.checkpoint` repeats a whole region at once. Where tensors inside the region were kept,
what lies before them is not needed until much later; so each repeated operation is moved to its
first reader, and those without a reader are dropped.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx
from torch.fx import traceback

from torchkiln.runtime.passes._origins import Phase, origin
from torchkiln.torch_internals._autograd import schema_of
from torchkiln.torch_internals._fx import tensors_in
from torchkiln.torch_internals._tensors import storage_key

_KEY = "torchkiln_again"


def recorded_again() -> Any:
    """Enter while a region is recorded for the second time."""
    return traceback.annotate({_KEY: True})


def postpone_repeated(graph: fx.GraphModule) -> None:
    """Move repeated operations to their first readers, except where memory is written in place."""
    nodes = list(graph.graph.nodes)
    again = [node for node in nodes if node.meta.get("custom", {}).get(_KEY)]
    # The update writes to weights, but after everything that is moved here.
    written = {
        key
        for node in nodes
        if _writes(node) and origin(node).phase is not Phase.UPDATE
        for key in _inputs(node)
    }
    for node in reversed(again):
        if _writes(node) or torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ()):
            continue
        if not node.users:
            graph.graph.erase_node(node)
            continue
        if written & (_inputs(node) | _storages(node)):
            continue
        # Nodes compare by their place in the graph, also after they were moved.
        min(node.users).prepend(node)
    graph.graph.lint()


def _writes(node: fx.Node) -> bool:
    schema = schema_of(node.target)
    return schema is not None and schema.is_mutable


def _inputs(node: fx.Node) -> set[int]:
    return {key for parent in node.all_input_nodes for key in _storages(parent)}


def _storages(node: fx.Node) -> set[int]:
    return {storage_key(tensor) for tensor in tensors_in(node.meta.get("val"))}
