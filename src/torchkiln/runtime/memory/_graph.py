"""The plan of a static graph that is run operator by operator."""

from __future__ import annotations

from torch import Tensor, fx

from torchkiln.runtime.capture._capture import Entry
from torchkiln.runtime.compile._plan import (
    Plan,
    PlannedBlock,
    PlannedCall,
    PlannedPart,
    PlannedTensor,
    short_dtype,
)
from torchkiln.runtime.passes._numbers import graph_digest
from torchkiln.torch_internals._fx import tensors_in
from torchkiln.torch_internals._tensors import storage_key


def called_nodes(graph: fx.GraphModule) -> list[fx.Node]:
    """Return the nodes that do something, in order: the calls of the plan."""
    return [node for node in graph.graph.nodes if node.op not in ("placeholder", "output")]


def plan_graph(entry: Entry) -> Plan:
    """Return the plan of one entry whose tensors live from their making to their last use.

    Views count as uses of the memory that they look into. What operators allocate for themselves is
    not known here.
    """
    nodes = list(entry.graph.graph.nodes)
    numbers = {node: number for number, node in enumerate(nodes)}
    called = called_nodes(entry.graph)
    inputs = {s for node in nodes if node.op == "placeholder" for s in _storages(node)}
    last = _last_uses(nodes, called)
    blocks: dict[str, PlannedBlock] = {}
    for index, node in enumerate(called):
        for key, size in _storages(node).items():
            if key not in inputs and key not in blocks:
                form = next(map(_form, tensors_in(node.meta.get("val"))), "")
                end = last[key]
                blocks[key] = PlannedBlock(size, form, index, end, end, (numbers[node],))
    calls = tuple(_call(node, numbers[node]) for node in called)
    return Plan(calls, tuple(blocks.values()), graph_digest(entry.graph))


def _call(node: fx.Node, number: int) -> PlannedCall:
    reads = [t for parent in node.all_input_nodes for t in tensors_in(parent.meta.get("val"))]
    writes = tensors_in(node.meta.get("val"))
    return PlannedCall(
        str(node.target),
        False,
        (PlannedPart(1, (number,)),),
        tuple(PlannedTensor(_form(tensor), tensor.nbytes) for tensor in reads),
        tuple(PlannedTensor(_form(tensor), tensor.nbytes) for tensor in writes),
        0,
    )


def _form(tensor: Tensor) -> str:
    return f"{short_dtype(tensor.dtype)}[{', '.join(map(str, tensor.shape))}]"


def _last_uses(nodes: list[fx.Node], called: list[fx.Node]) -> dict[str, int]:
    """Return the index of the last call that uses each piece of memory; outputs live to the end."""
    index = {node: place for place, node in enumerate(called)}
    last: dict[str, int] = {}
    for node in nodes:
        place = index.get(node, len(called) - 1 if node.op == "output" else 0)
        for used in (node, *node.all_input_nodes):
            for key in _storages(used):
                last[key] = place
    return last


def _storages(node: fx.Node) -> dict[str, int]:
    """Return the memory behind the tensors of a node, with its size."""
    return {
        str(storage_key(tensor)): tensor.untyped_storage().nbytes()
        for tensor in tensors_in(node.meta.get("val"))
    }
