"""On which inputs of a recorded step its loss depends."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, fx

from torchkiln.core import LossInputs
from torchkiln.runtime.passes._calls import arguments_of, base_of, written_by

aten = torch.ops.aten

_LOSS = "torchkiln_loss"
_COMPARISONS = frozenset(
    {
        getattr(aten, name)
        for name in ("eq", "ne", "lt", "le", "gt", "ge", "isnan", "isfinite", "isinf")
    }
)
# They change neither the values of labels nor their order.
_KEEPING = frozenset(
    getattr(aten, name)
    for name in ("view", "_unsafe_view", "squeeze", "unsqueeze", "_to_copy", "clone", "detach")
)
_IGNORING = frozenset({aten.nll_loss_forward.default, aten.nll_loss2d_forward.default})


def take_loss(graph: fx.GraphModule) -> None:
    """Take the last output off the graph, and remember that it is the loss."""
    output = next(node for node in graph.graph.nodes if node.op == "output")
    *outputs, loss = output.args[0]
    output.args = (outputs,)
    loss.meta[_LOSS] = True


def read_loss_inputs(
    graph: fx.GraphModule, num_inputs: int, functions: Iterable[str]
) -> LossInputs | None:
    """Return how the loss depends on the last `num_inputs` inputs; None if there is no loss."""
    loss = next((node for node in graph.graph.nodes if _LOSS in node.meta), None)
    if loss is None:
        return None
    placeholders = [node for node in graph.graph.nodes if node.op == "placeholder"]
    first = len(placeholders) - num_inputs
    numbers = {node: number for number, node in enumerate(placeholders[first:])}
    flow = _Flow(graph.graph, loss, numbers)
    everything = flow.before(loss)
    return LossInputs(
        reaching=flow.inputs_in(everything),
        uncut=flow.inputs_in(flow.before(loss, stop=_cuts_end)),
        compared=flow.compared(everything, set(placeholders[:first])),
        ignored=flow.ignored(everything),
        functions=tuple(dict.fromkeys(functions)),
    )


def drop_aliases(graph: fx.GraphModule) -> None:
    """Take out the marks that masks for layers carry, see `mark_for_layers`."""
    for node in list(graph.graph.nodes):
        if _is_for_layers(node):
            node.replace_all_uses_with(node.args[0])
            graph.graph.erase_node(node)


class _Flow:
    """The values that a recorded forward computes, backwards from its loss."""

    def __init__(self, graph: fx.Graph, loss: fx.Node, numbers: dict[fx.Node, int]) -> None:
        self._numbers = numbers
        # Who writes into the memory of a node: what is read from it later depends on the writer.
        self._writers: dict[fx.Node, list[fx.Node]] = {}
        for node in graph.nodes:
            if node is loss:
                break  # backward and update depend on everything, and the loss not on them
            for written in written_by(node) if node.op == "call_function" else ():
                self._writers.setdefault(base_of(written), []).append(node)

    def before(
        self, start: fx.Node, stop: Callable[[fx.Node], bool] = lambda node: False
    ) -> set[fx.Node]:
        """Return everything that `start` is computed from, on ways without a node to stop at."""
        seen, stack = set(), [start]
        while stack:
            node = stack.pop()
            if node in seen or _is_for_layers(node) or stop(node):
                continue
            seen.add(node)
            stack.extend(node.all_input_nodes)
            stack.extend(self._writers.get(base_of(node), ()))
        return seen

    def inputs_in(self, nodes: Iterable[fx.Node]) -> frozenset[int]:
        return frozenset(self._numbers[node] for node in nodes if node in self._numbers)

    def compared(self, nodes: Iterable[fx.Node], others: set[fx.Node]) -> frozenset[int]:
        """Return the inputs that alone decide a comparison, without help of the module."""
        found: set[int] = set()
        for node in nodes:
            if getattr(node.target, "overloadpacket", None) not in _COMPARISONS:
                continue
            sources = self._before_without(node, others)
            inputs = self.inputs_in(sources or ())
            if len(inputs) == 1:
                found |= inputs
        return frozenset(found)

    def _before_without(self, start: fx.Node, others: set[fx.Node]) -> set[fx.Node] | None:
        """Return everything that `start` is computed from; None as soon as one of `others` is."""
        met = False

        def stop(node: fx.Node) -> bool:
            nonlocal met
            met = met or node in others
            return met

        sources = self.before(start, stop)
        return None if met else sources

    def ignored(self, nodes: Iterable[fx.Node]) -> tuple[tuple[int, int], ...]:
        """Return the inputs that are labels of a loss function, with the class that it ignores."""
        pairs = set()
        for node in nodes:
            if node.target in _IGNORING:
                named = arguments_of(node)
                labels = named["target"]
                while getattr(labels.target, "overloadpacket", None) in _KEEPING:
                    labels = labels.args[0]
                if labels in self._numbers:
                    pairs.add((self._numbers[labels], int(named["ignore_index"])))
        return tuple(sorted(pairs))


def _is_for_layers(node: fx.Node) -> bool:
    value = node.meta.get("val")
    return (
        node.target is aten.alias.default
        and isinstance(value, Tensor)
        and value.dtype is torch.bool
    )


def _cuts_end(node: fx.Node) -> bool:
    """Whether a node leaves out the last rows of a tensor, where filler lies."""
    if node.target is aten.slice.Tensor:
        named = arguments_of(node)
        return named["dim"] == 0 and _rows(node) < _rows(named["self"]) and _ends_early(named)
    if node.target is aten.index.Tensor:
        source, indices = node.args[0], node.args[1]
        assert isinstance(indices, Sequence)
        first = indices[0] if indices else None
        return isinstance(first, fx.Node) and _is_fixed(first) and _rows(node) < _rows(source)
    return False


def _ends_early(named: dict[str, Any]) -> bool:
    end, rows = named["end"], _rows(named["self"])
    return isinstance(end, int) and (end if end >= 0 else end + rows) < rows


def _is_fixed(node: fx.Node) -> bool:
    """Whether a value is the same in every call."""
    seen, stack = set(), [node]
    while stack:
        node = stack.pop()
        if node.op == "placeholder":
            return False
        if node not in seen:
            seen.add(node)
            stack.extend(node.all_input_nodes)
    return True


def _rows(node: Any) -> int:
    value = node.meta.get("val") if isinstance(node, fx.Node) else None
    return value.shape[0] if isinstance(value, Tensor) and value.dim() else 0
