"""The graph of one slot, put together from the operations that it needs."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx

from torchkiln.runtime.pipeline._demand import Demand, Transport, Version
from torchkiln.runtime.pipeline._division import DRAW, Slot, bytes_of, reads_of
from torchkiln.torch_internals._fake_tensors import FakeTensorMode

aten = torch.ops.aten


@dataclass(frozen=True, slots=True, eq=False)
class Assembled:
    """A graph, what its placeholders are in order, and the names of its results."""

    graph: fx.GraphModule
    inputs: tuple[fx.Node | Transport, ...]
    results: tuple[str, ...]


class _Assembly:
    """A graph under construction."""

    def __init__(
        self, demand: Demand, slot: Slot, taken: Iterable[Transport], given: Iterable[Transport]
    ) -> None:
        self.demand = demand
        self.memory = demand.memory
        self.slot = slot
        self.needs = demand.needs[slot]
        self.graph = fx.Graph()
        self.inputs: list[fx.Node | Transport] = []
        self._taken = {transport.version: transport for transport in taken}
        self._given = list(given)
        # What stands for a node in the new graph: inputs, roots, and views of them by their base.
        self._new: dict[fx.Node, fx.Node] = {}
        self._received: dict[Version, fx.Node] = {}
        self._views: dict[tuple[fx.Node, fx.Node], fx.Node] = {}
        self._results: dict[str, fx.Node] = {}
        self._token: fx.Node | None = None

    def run(self, source: fx.GraphModule) -> Assembled:
        self._make_inputs()
        for root in [node for node in self._new if not self._is_early(node, None)]:
            self._keep_early(root, None)
        for node in sorted(self.needs.nodes, key=self.memory.places.__getitem__):
            self._emit(node)
        for transport in self._given:
            if transport.name not in self._results:
                self._results[transport.name] = self._result(transport)
        self.graph.output(tuple(self._results.values()))
        # Flat tensors in and out: no tree handling in the generated code.
        self.graph.set_codegen(fx.graph.CodeGen())
        self.graph.lint()
        return Assembled(
            fx.GraphModule(source, self.graph), tuple(self.inputs), tuple(self._results)
        )

    # -- inputs -----------------------------------------------------------------------------

    def _make_inputs(self) -> None:
        memory = self.memory
        constants = []
        for leaf in sorted(self.needs.leaves, key=memory.places.__getitem__):
            if leaf.op == "get_attr":
                constants.append(leaf)
                continue
            self._new[leaf] = self.graph.placeholder(leaf.name)
            self.inputs.append(leaf)
        received = [v for v in self._taken if v in self.needs.imports]
        for version in received:
            transport = self._taken[version]
            self._received[version] = self.graph.placeholder(transport.name)
            self.inputs.append(transport)
        for leaf in constants:
            self._new[leaf] = self.graph.get_attr(str(leaf.target))
        for version in received:
            if self.demand.local_writers(version.root, self.slot):
                # Somebody else may still need it as it is.
                self._received[version] = self._clone(self._received[version])

    # -- operations -------------------------------------------------------------------------

    def _emit(self, node: fx.Node) -> None:
        mapping = {value: self._value(value, node) for value in reads_of(node)}
        if node.target is DRAW:
            rest = tuple(
                mapping[argument] if isinstance(argument, fx.Node) else argument
                for argument in node.args[1:]
            )
            made = self.graph.call_function(DRAW, (self._token, *rest))
            self._token = self.graph.call_function(operator.getitem, (made, 1))
        else:
            made = self._copy(node, mapping)
        self._describe(made, node)
        if not self.memory.is_view(node):
            self._new[node] = made
            self._keep_early(node, None)
        for root in {self.memory.root(parent) for parent in node.all_input_nodes}:
            if node in self.memory.writers(root):
                self._keep_early(root, node)

    def _value(self, value: fx.Node, reader: fx.Node) -> fx.Node:
        """Return what stands for a value that an operation reads."""
        version = self.demand.version(value, reader, self.slot)
        return self._view(version, self.memory.same(value))

    def _view(self, version: Version | None, value: fx.Node) -> fx.Node:
        """Return a value by the views that lead to it from what is there."""
        root = self.memory.root(value)
        if version is None and root in self._new:
            base, known = self._new[root], root
        else:
            version = version or self._written_version(root)
            base, known = self._received[version], self._taken[version].node
        chain = self.memory.chain(value)
        for node in chain[chain.index(known) + 1 :]:
            key = (base, node)
            if key not in self._views:
                (parent,) = node.all_input_nodes
                self._views[key] = self._copy(node, {parent: base})
                self._describe(self._views[key], node)
            base = self._views[key]
        return base

    def _written_version(self, root: fx.Node) -> Version:
        """Return the memory of another slot to which this one wrote."""
        first = self.demand.local_writers(root, self.slot)[0]
        version = self.demand.version(root, first, self.slot)
        assert version is not None
        return version

    # -- results ----------------------------------------------------------------------------

    def _is_early(self, root: fx.Node, writer: fx.Node | None) -> bool:
        """Whether nobody in this slot writes to the memory after `writer`."""
        later = [w for w in self.demand.local_writers(root, self.slot) if w in self.needs.nodes]
        return not later or later[-1] is writer

    def _keep_early(self, root: fx.Node, writer: fx.Node | None) -> None:
        """Copy a result before something else is written to its memory."""
        if self._is_early(root, writer):
            return
        for transport in self._given:
            version = transport.version
            if version.root is root and version.writer is writer and not version.is_passed:
                self._results[transport.name] = self._clone(self._view(None, transport.node))

    def _result(self, transport: Transport) -> fx.Node:
        version = transport.version
        if version.is_passed:
            origin = Version(version.root, version.writer, version.slot)
            return self._clone(self._view(origin, transport.node))
        value = self._view(None, transport.node)
        others = [given for given in self._given if given.version.root is version.root]
        is_whole = transport.node is version.root or (
            len(others) == 1 and bytes_of(transport.node) == bytes_of(version.root)
        )
        # Inputs and other results have memory of their own.
        return value if is_whole and value.op != "placeholder" else self._clone(value)

    def _clone(self, node: fx.Node) -> fx.Node:
        made = self.graph.call_function(aten.clone.default, (node,))
        made.meta = {"custom": node.meta.get("custom", {})}
        return made

    def _copy(self, node: fx.Node, mapping: dict[fx.Node, fx.Node]) -> fx.Node:
        """Put an operation into the graph that reads other nodes."""
        args: Any = fx.map_arg(node.args, mapping.__getitem__)
        kwargs: Any = fx.map_arg(node.kwargs, mapping.__getitem__)
        target: Any = node.target
        return self.graph.call_function(target, args, kwargs)

    def _describe(self, made: fx.Node, node: fx.Node) -> None:
        made.meta = {key: value for key, value in node.meta.items() if key != "val"}


def assemble(
    demand: Demand,
    slot: Slot,
    source: fx.GraphModule,
    taken: Iterable[Transport],
    given: Iterable[Transport],
) -> Assembled:
    """Return the graph of a slot.

    Args:
        demand: What it needs.
        slot: The slot.
        source: Where the operations are from.
        taken: What other slots give to it.
        given: What it gives to others, and its outputs.
    """
    return _Assembly(demand, slot, taken, given).run(source)


def infer_shapes(
    graph: fx.GraphModule, inputs: list[Tensor], mode: FakeTensorMode
) -> tuple[Tensor, ...]:
    """Let the nodes of a graph know what they make of inputs like these; return the results."""
    with mode, torch.no_grad():
        results: tuple[Tensor, ...] = _Shapes(graph, mode).run(*inputs)
    return results


class _Shapes(fx.Interpreter):
    """Runs a graph on tensors without values, and notes what each node makes."""

    def __init__(self, graph: fx.GraphModule, mode: FakeTensorMode) -> None:
        super().__init__(graph)
        self._mode = mode

    def run_node(self, n: fx.Node) -> Any:
        result = super().run_node(n)
        if n.op == "get_attr":
            result = self._mode.from_tensor(result.detach())
        if n.op != "output":
            n.meta["val"] = result
        return result
