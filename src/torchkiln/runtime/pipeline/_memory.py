"""Which values of a recorded graph share memory, and who writes to it."""

from __future__ import annotations

import bisect
import operator
from collections.abc import Iterator
from typing import Any

import torch
from torch import fx

from torchkiln.core import CaptureError
from torchkiln.runtime.passes._calls import written_by
from torchkiln.torch_internals._autograd import schema_of
from torchkiln.torch_internals._fx import is_unannounced_view

aten = torch.ops.aten
# The same numbers in the same places under another name.
_SAME = frozenset({aten.detach.default, aten.alias.default})


class Memory:
    """The values of a graph by the memory that they look into.

    The first value of a piece of memory is its root: an input, a constant, or what an operation
    made. All others are views of it, or the root once more after somebody wrote to it.
    """

    def __init__(self, graph: fx.GraphModule) -> None:
        plain_views(graph)
        self.nodes: list[fx.Node] = list(graph.graph.nodes)
        self.places = {node: place for place, node in enumerate(self.nodes)}
        self._parents: dict[fx.Node, fx.Node] = {}
        self._roots: dict[fx.Node, fx.Node] = {}
        self._writers: dict[fx.Node, list[fx.Node]] = {}
        for node in self.nodes:
            parent = _parent(node)
            if parent is not None:
                self._parents[node] = parent
            self._roots[node] = node if parent is None else self._roots[parent]
            for written in _written_by(node):
                self._writers.setdefault(self._roots[written], []).append(node)

    def root(self, node: fx.Node) -> fx.Node:
        """Return the first value of the memory that `node` looks into."""
        return self._roots[node]

    def writers(self, root: fx.Node) -> list[fx.Node]:
        """Return the operations that write to the memory after it was made, in order."""
        return self._writers.get(root, [])

    def last_writer(self, root: fx.Node, before: fx.Node) -> fx.Node | None:
        """Return who wrote to the memory last when `before` runs; None: nobody."""
        writers = self.writers(root)
        places = [self.places[writer] for writer in writers]
        index = bisect.bisect_left(places, self.places[before])
        return writers[index - 1] if index else None

    def is_view(self, node: fx.Node) -> bool:
        """Whether a node only looks at memory that is there: it may be repeated anywhere."""
        return node in self._parents

    def same(self, node: fx.Node) -> fx.Node:
        """Return the first node that is the same memory in the same shape as `node`."""
        while node in self._parents and (node.target in _SAME or is_writing(node)):
            node = self._parents[node]
        return node

    def chain(self, node: fx.Node) -> list[fx.Node]:
        """Return the views that lead from the root (first) to `node` (last), none twice."""
        found = [self.same(node)]
        while found[-1] in self._parents:
            found.append(self.same(self._parents[found[-1]]))
        return found[::-1]


def is_writing(node: fx.Node) -> bool:
    """Whether a node writes to memory that it is given."""
    schema = schema_of(node.target)
    return node.op == "call_function" and schema is not None and bool(schema.is_mutable)


def _written_by(node: fx.Node) -> Iterator[fx.Node]:
    """Yield the arguments that a call writes to, also those that its operator does not tell of."""
    if node.op != "call_function":
        return
    yield from written_by(node)
    if node.target is aten.native_batch_norm.default and node.args[5]:
        yield from (value for value in node.args[3:5] if isinstance(value, fx.Node))


def ignored_by(node: fx.Node) -> set[fx.Node]:
    """Return the arguments whose values a call does not read."""
    if node.target is aten.native_batch_norm_backward.default and node.args[7]:
        return {value for value in node.args[3:5] if isinstance(value, fx.Node)}
    return set()


def plain_views(graph: fx.GraphModule) -> None:
    """Replace operations that give a tensor another shape in place by those that return a view.

    Raises:
        CaptureError: if an operation gives a tensor other memory.
    """
    for node in graph.graph.nodes:
        if torch.Tag.inplace_view not in getattr(node.target, "tags", ()):
            continue
        packet, _, overload = str(node.target).removeprefix("aten.").partition(".")
        plain = getattr(getattr(aten, packet.removesuffix("_"), None), overload, None)
        if plain is None or packet in ("resize_", "set_"):
            raise CaptureError(
                f"forward calls {node.target}, which gives a tensor other memory, so the step "
                "cannot be cut into stages; make a new tensor instead"
            )
        node.target = plain


def _parent(node: fx.Node) -> fx.Node | None:
    """Return the value whose memory a node looks into; None if the memory is its own."""
    if node.op != "call_function":
        return None
    if node.target is operator.getitem:
        made, index = node.args
        assert isinstance(made, fx.Node)
        # The results of one call: each its own, or all views of one tensor.
        return made if _aliased(made, index) is not None else None
    if is_unannounced_view(node.target):
        return node.args[0] if isinstance(node.args[0], fx.Node) else None
    return _aliased(node, 0)


def _aliased(node: fx.Node, index: Any) -> fx.Node | None:
    """Return the argument whose memory a result of a call is."""
    schema = schema_of(node.target)
    returns = schema.returns if schema is not None else ()
    if not returns:
        return None
    result = returns[index if len(returns) > 1 else 0].alias_info
    if result is None:
        return None
    names = set(result.before_set) | set(result.after_set)
    for position, argument in enumerate(schema.arguments):
        info = argument.alias_info
        # Operators that return a list of views name nothing.
        if info is None or (names and not names & set(info.before_set)):
            continue
        value = node.args[position] if position < len(node.args) else node.kwargs.get(argument.name)
        if isinstance(value, fx.Node):
            return value
    return None
