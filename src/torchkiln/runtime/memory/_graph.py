"""The memory of a static graph that is run operator by operator."""

from __future__ import annotations

from torch import fx

from torchkiln.runtime.capture._capture import Entry
from torchkiln.runtime.memory._timeline import Timeline
from torchkiln.runtime.passes._origins import Phase, origin
from torchkiln.torch_internals._fx import tensors_in
from torchkiln.torch_internals._tensors import storage_key


def plan_graph(entry: Entry) -> Timeline:
    """Return the memory of one entry whose tensors live from their making to their last use.

    Views count as uses of the memory that they look into. What operators allocate for themselves is
    not known here.
    """
    nodes = list(entry.graph.graph.nodes)
    inputs = {s for node in nodes if node.op == "placeholder" for s in _storages(node)}
    last = _last_uses(nodes)
    timeline = Timeline()
    made: set[str] = set()
    for index, node in enumerate(nodes):
        if node.op in ("placeholder", "output"):
            continue
        module, phase = origin(node)
        if phase is Phase.BACKWARD:
            timeline.turn()
        own = {key: size for key, size in _storages(node).items() if key not in inputs}
        for key, size in own.items():
            if key not in made:
                made.add(key)
                timeline.allocate(key, size, module, phase)
        reads = [key for parent in node.all_input_nodes for key in _storages(parent)]
        timeline.use([*own, *reads], module, phase)
        for key in {*own, *reads}:
            if last[key] == index:
                timeline.free(key)
    return timeline


def _last_uses(nodes: list[fx.Node]) -> dict[str, int]:
    last: dict[str, int] = {}
    for index, node in enumerate(nodes):
        for used in (node, *node.all_input_nodes):
            for key in _storages(used):
                last[key] = index
    return last


def _storages(node: fx.Node) -> dict[str, int]:
    """Return the memory behind the tensors of a node, with its size."""
    return {
        str(storage_key(tensor)): tensor.untyped_storage().nbytes()
        for tensor in tensors_in(node.meta.get("val"))
    }
