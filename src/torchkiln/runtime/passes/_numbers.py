"""Numbers by which the nodes of a recorded graph are known again in the code made of it.

A program from the cache was compiled in another process. Its calls name recorded nodes by number;
recording the step again gives the same nodes in the same order, and with them module and line.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable

from torch import fx

_KEY = "torchkiln_number"


def number_nodes(graph: fx.GraphModule) -> str:
    """Let every node carry its place in the graph, through all later changes of the graph.

    Returns:
        `graph_digest` of the graph.
    """
    digest = graph_digest(graph)
    for number, node in enumerate(graph.graph.nodes):
        # Nodes that were recorded together may share what they carry.
        node.meta["custom"] = {**node.meta.get("custom", {}), _KEY: number}
    return digest


def graph_digest(graph: fx.GraphModule) -> str:
    """Return a digest of the operators of a graph: what numbers of nodes are good for."""
    names = "\n".join(f"{node.op} {_target(node)}" for node in graph.graph.nodes)
    return hashlib.sha256(names.encode()).hexdigest()[:16]


def _target(node: fx.Node) -> str:
    # Names of inputs and constants may differ from one recording to the next.
    return str(node.target) if node.op == "call_function" else ""


def numbers_of(node: fx.Node) -> list[int]:
    """Return the numbers of the recorded nodes that `node`, of a later graph, was made of.

    A node that a pass put in has no number: it counts as what it reads, or else as what reads it.
    """
    for follow in (_read, _readers):
        found = _search(node, follow)
        if found:
            return sorted(found)
    return []


def _read(node: fx.Node) -> list[fx.Node]:
    return [parent for parent in node.all_input_nodes if parent.op != "placeholder"]


def _readers(node: fx.Node) -> list[fx.Node]:
    return [reader for reader in node.users if reader.op != "output"]


def _search(node: fx.Node, follow: Callable[[fx.Node], list[fx.Node]]) -> set[int]:
    """Return the nearest numbers in one direction."""
    seen: set[fx.Node] = {node}
    front = [node]
    while front:
        found = {number for entry in front if (number := _number(entry)) is not None}
        if found:
            return found
        following = [other for entry in front for other in follow(entry)]
        front = [other for other in dict.fromkeys(following) if other not in seen]
        seen.update(front)
    return set()


def _number(node: fx.Node) -> int | None:
    number: int | None = node.meta.get("custom", {}).get(_KEY)
    return number
