"""Self-loops without changing the number of edges by data.

PyG's layers remove the loops that a graph has and add one to each node. Statically the existing
loops stay with weight zero (`static_gcn_norm`), or go to a ghost node (`GhostLoops`), and a loop is
appended for every node: same numbers, fixed size.
"""

from __future__ import annotations

import inspect
import threading
from typing import Any

import torch
from torch import Tensor, nn

from torchkiln.core import ArgumentError
from torchkiln.graphs.layers._batch_form import current_form, pop_form, push_form
from torchkiln.graphs.layers._ghost import add_ghost, banish, ghost_form, needs_ghost, rows_of

_local = threading.local()

# Layers that drop the loops of their graph and add new ones, and take what is listed in _PER_NODE.
GHOST_LAYERS = (
    "AGNNConv",
    "EGConv",
    "FeaStConv",
    "GATConv",
    "GATv2Conv",
    "PPFConv",
    "PointNetConv",
    "PointTransformerConv",
    "SuperGATConv",
)
_PER_NODE = ("x", "x_0", "pos", "normal")


class GhostLoops:
    """Forward hooks of a layer whose own self-loops are switched off while a program records it.

    In ordinary PyTorch the layer does what PyG does, unless `needs_ghost`.
    """

    def attach(self, layer: nn.Module) -> None:
        layer.register_forward_pre_hook(self.enter, with_kwargs=True)
        layer.register_forward_hook(self.leave, always_call=True)

    def enter(self, layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Add the ghost to the nodes, send existing loops to it, and append a loop per node."""
        # `leave` is called after errors, too: whatever happens here, there is a form to take away.
        push_form(current_form())
        if not needs_ghost(layer):
            return None
        bound = inspect.signature(layer.forward).bind(*args, **kwargs)
        given = bound.arguments
        edge_index = given["edge_index"]
        if not isinstance(edge_index, Tensor) or edge_index.layout != torch.strided:
            raise ArgumentError(
                f"{type(layer).__name__} was made static and needs edge_index as a [2, num_edges] "
                f"tensor, got {type(edge_index).__name__}; convert it before the call"
            )
        if given.get("return_attention_weights") is not None:
            raise ArgumentError(
                f"{type(layer).__name__} was made static and cannot return attention weights: "
                "their number depends on the self-loops of the data; add the loops with "
                "torch_geometric.transforms.AddRemainingSelfLoops() and use add_self_loops=False"
            )
        nodes = given["x"] if given.get("x") is not None else given["pos"]
        if isinstance(nodes, tuple | list) and all(entry is None for entry in nodes):
            nodes = given["pos"]
        sizes = rows_of(nodes)
        inside = ghost_form(layer, edge_index, edge_index[0] == edge_index[1], sizes, min(sizes))
        for name in _PER_NODE:
            if name in given:
                given[name] = add_ghost(given[name])
        if given.get("size") is not None:
            given["size"] = tuple(size + 1 for size in given["size"])
        given["edge_index"], edge_attr = _with_loops(
            edge_index, given.get("edge_attr"), sizes, getattr(layer, "fill_value", None)
        )
        if edge_attr is not None:
            given["edge_attr"] = edge_attr
        pop_form()
        push_form(inside)
        layer.add_self_loops = False  # type: ignore[assignment]
        return bound.args, bound.kwargs

    def leave(self, layer: nn.Module, args: tuple[Any, ...], output: Tensor | None) -> Any:
        """Cut the ghost off again; without an output the layer has raised."""
        pop_form()
        if not needs_ghost(layer):
            return None
        layer.add_self_loops = True  # type: ignore[assignment]
        return None if output is None else output[:-1]


def _with_loops(
    edge_index: Tensor, edge_attr: Tensor | None, sizes: tuple[int, int], fill: Any
) -> tuple[Tensor, Tensor | None]:
    edge_index = banish(edge_index, edge_index[0] == edge_index[1], sizes)
    count = min(sizes)
    nodes = torch.arange(count, device=edge_index.device)
    with_loops = torch.cat([edge_index, nodes.expand(2, -1)], dim=1)
    if edge_attr is None:
        return with_loops, None
    attributes = _loop_attributes(edge_attr, edge_index[1], sizes[1] + 1, count, fill)
    return with_loops, torch.cat([edge_attr, attributes])


def _loop_attributes(edge_attr: Tensor, target: Tensor, size: int, count: int, fill: Any) -> Tensor:
    """Return the attributes of the new loops, by PyG's rules for `fill_value`."""
    shape = (count, *edge_attr.shape[1:])
    if isinstance(fill, str):
        from torch_geometric.utils import scatter

        reduced: Tensor = scatter(edge_attr, target, 0, dim_size=size, reduce=fill)
        return reduced[:count]
    if isinstance(fill, Tensor):
        return fill.to(edge_attr).expand(shape)
    return edge_attr.new_full(shape, 1.0 if fill is None else fill)


class WeightedLoops:
    """Forward hooks that let `gcn_norm` add self-loops statically while this layer runs."""

    def attach(self, layer: nn.Module) -> None:
        layer.register_forward_pre_hook(self.enter)
        layer.register_forward_hook(self.leave, always_call=True)

    def enter(self, layer: nn.Module, args: tuple[Any, ...]) -> None:
        _local.depth = getattr(_local, "depth", 0) + 1

    def leave(self, layer: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        _local.depth -= 1


def static_gcn_norm(original: Any, *args: Any, **kwargs: Any) -> Any:
    """`gcn_norm` with self-loops as weights, inside layers that were made static."""
    bound = inspect.signature(original).bind(*args, **kwargs)
    bound.apply_defaults()
    given = bound.arguments
    edge_index, nodes = given["edge_index"], given["num_nodes"]
    static = isinstance(edge_index, Tensor) and edge_index.layout == torch.strided
    wanted = given["add_self_loops"] and getattr(_local, "depth", 0)
    if not (static and wanted and nodes is not None):
        return original(*args, **kwargs)
    given["edge_index"], given["edge_weight"] = remaining_self_loops(
        edge_index, given["edge_weight"], 2.0 if given["improved"] else 1.0, nodes, given["dtype"]
    )
    given["add_self_loops"] = False
    return original(*bound.args, **bound.kwargs)


def remaining_self_loops(
    edge_index: Tensor,
    edge_weight: Tensor | None,
    fill: float,
    num_nodes: int,
    dtype: torch.dtype | None = None,
) -> tuple[Tensor, Tensor]:
    """Return edges and weights with exactly one effective self-loop per node.

    An existing loop hands its weight to the appended one and keeps weight 0; where a node has
    several, one of them counts, as in PyG.
    """
    if edge_weight is None:
        # PyG gives weights only after it has added the loops: all are 1, whatever `fill` is.
        edge_weight = torch.ones(edge_index.shape[1], dtype=dtype, device=edge_index.device)
        fill = 1.0
    is_loop = edge_index[0] == edge_index[1]
    # Weights of other edges are written to a place that is cut off.
    place = torch.where(is_loop, edge_index[0], num_nodes)
    loops = edge_weight.new_full((num_nodes + 1,), fill).scatter(0, place, edge_weight)
    nodes = torch.arange(num_nodes, device=edge_index.device)
    return (
        torch.cat([edge_index, nodes.expand(2, -1)], dim=1),
        torch.cat([torch.where(is_loop, 0.0, edge_weight), loops[:num_nodes]]),
    )
