"""Which stage runs each operation of a recorded graph, in forward or in backward."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx

from torchkiln.core import CaptureError
from torchkiln.runtime.passes._costs import flops_of
from torchkiln.runtime.passes._origins import Phase
from torchkiln.runtime.passes._stages import mark_of
from torchkiln.runtime.pipeline._memory import Memory, is_writing
from torchkiln.runtime.pipeline._parts import Argument, Bound, Source, Sum
from torchkiln.torch_internals._fx import tensors_in

aten = torch.ops.aten
DRAW = torch.ops.torchkiln.draw.default
# A value that takes no more operations for each of its numbers is computed where it is needed.
_CHEAP_FLOPS = 4


@dataclass(frozen=True, slots=True)
class Slot:
    """Forward or backward of a stage: what runs in one piece."""

    stage: int
    is_backward: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Inputs:
    """What the placeholders of the graph are.

    Args:
        sources: Of each.
        names: Of the bound tensors, by position.
        trained: Positions of the bound tensors that the update changes.
    """

    sources: dict[fx.Node, Source]
    names: list[str]
    trained: frozenset[int]

    def is_trained(self, node: fx.Node) -> bool:
        """Whether a placeholder is a parameter that the update changes."""
        source = self.sources.get(node)
        return isinstance(source, Bound) and source.index in self.trained

    def bound_name(self, node: fx.Node) -> str:
        """Return the name of a bound tensor."""
        source = self.sources[node]
        assert isinstance(source, Bound)
        return self.names[source.index]


class Division:
    """The slots of all operations that are no views: those are repeated where they are needed."""

    def __init__(self, memory: Memory, inputs: Inputs, num_stages: int) -> None:
        self.memory = memory
        self.inputs = inputs
        self.num_stages = num_stages
        self._repeatable = self._find_repeatable()
        self._slots: dict[fx.Node, Slot] = {}
        self._stages = self._stages_of_parameters()
        for node in memory.nodes:
            if node.op == "call_function" and (is_writing(node) or not memory.is_view(node)):
                self._slots[node] = self._place(node)
        self._sink_copies_of_outputs()

    def time(self, slot: Slot) -> int:
        """Return when a slot runs: values flow to later ones only."""
        return 2 * self.num_stages - 1 - slot.stage if slot.is_backward else slot.stage

    def slot(self, node: fx.Node) -> Slot:
        """Return where an operation runs, or would, if it is repeated elsewhere."""
        return self._slots[node]

    def stage_of_parameter(self, name: str) -> int:
        """Return the stage that uses and updates a trained parameter."""
        return self._stages[name]

    def is_repeatable(self, root: fx.Node, stage: int) -> bool:
        """Whether a stage computes a value itself, in forward and again in backward."""
        leaves = self._repeatable.get(root)
        if leaves is None:
            return False
        if not any(self.inputs.is_trained(leaf) for leaf in leaves):
            return True
        mark = mark_of(root)
        return mark is not None and mark.stage == stage

    # -- repeating --------------------------------------------------------------------------

    def _find_repeatable(self) -> dict[fx.Node, frozenset[fx.Node]]:
        """Return cheap values of inputs that nobody writes to, with these inputs."""
        memory = self.memory
        leaves: dict[fx.Node, frozenset[fx.Node]] = {}
        costs: dict[fx.Node, int] = {}
        for node in memory.nodes:
            if memory.is_view(node) or node.op == "output" or memory.writers(node):
                continue
            roots = [memory.root(parent) for parent in node.all_input_nodes]
            if node.op in ("placeholder", "get_attr"):
                leaves[node], costs[node] = frozenset([node][: node.op == "placeholder"]), 0
            elif all(root in leaves for root in roots) and not _is_impure(node):
                # A call with several results is judged by all of them.
                cost = flops_of(node) + sum(costs[root] for root in dict.fromkeys(roots))
                made = sum(tensor.numel() for tensor in tensors_in(node.meta.get("val")))
                if node.target is operator.getitem or cost <= _CHEAP_FLOPS * made:
                    leaves[node] = frozenset[fx.Node]().union(*(leaves[r] for r in roots))
                    costs[node] = cost
        return leaves

    # -- placing ----------------------------------------------------------------------------

    def _stages_of_parameters(self) -> dict[str, int]:
        memory, inputs = self.memory, self.inputs
        users: dict[str, dict[int, fx.Node]] = {}
        for node in memory.nodes:
            mark = mark_of(node)
            if mark is None or mark.phase is Phase.UPDATE or memory.is_view(node):
                continue
            for parent in node.all_input_nodes:
                root = memory.root(parent)
                if inputs.is_trained(root):
                    users.setdefault(inputs.bound_name(root), {}).setdefault(mark.stage, node)
        for name, stages in users.items():
            if len(stages) > 1:
                first, second = sorted(stages)[:2]
                raise CaptureError(
                    f"parameter {name!r} is used in stage {first} and in stage {second} of the "
                    "pipeline, but one stage alone can train it; put the blocks that use it into "
                    "one stage, or give each a parameter of its own. (A forward that calls "
                    "torch.autograd.grad on several stages uses their weights once more.)"
                )
        return {name: next(iter(stages)) for name, stages in users.items()}

    def _place(self, node: fx.Node) -> Slot:
        if node.target is operator.getitem:
            (made, *_) = node.all_input_nodes
            return self._slots[made]
        mark = mark_of(node) or next(iter(filter(None, map(mark_of, node.users))), None)
        if mark is None:
            return self._latest(node, Slot(0))
        if mark.phase is Phase.FORWARD:
            own = Slot(mark.stage)
            if self._latest(node, own) != own:
                raise CaptureError(
                    f"{node.target} in stage {mark.stage} of the pipeline reads what a later stage "
                    "computes; list the blocks in the order in which forward calls them"
                )
            return own
        if mark.phase is Phase.BACKWARD:
            return self._latest(node, Slot(mark.stage, is_backward=True))
        if mark.parameter:
            return self._latest(node, Slot(self._stages[mark.parameter], is_backward=True))
        return self._latest(node, self._user_of_target(node) or Slot(0))

    def _latest(self, node: fx.Node, at_least: Slot) -> Slot:
        """Return the last of the slots that an operation reads from, or its own."""
        found = at_least
        for parent in node.all_input_nodes:
            root = self.memory.root(parent)
            source = self.memory.last_writer(root, node) or root
            if source in self._slots and not self.is_repeatable(root, found.stage):
                found = max(found, self._slots[source], key=self.time)
        return found

    def _user_of_target(self, node: fx.Node) -> Slot | None:
        """Return the stage that uses the buffer to which `node` writes after forward."""
        if not is_writing(node):
            return None
        root = self.memory.root(node.all_input_nodes[0])
        for reader in self.memory.nodes:
            mark = mark_of(reader)
            roots = map(self.memory.root, reader.all_input_nodes)
            if mark is not None and mark.phase is Phase.FORWARD and root in roots:
                return Slot(mark.stage)
        return None

    def _sink_copies_of_outputs(self) -> None:
        """Let the copy of an output be made where the output is."""
        for node in self.memory.nodes:
            if node.target is not aten.clone.default or any(u.op != "output" for u in node.users):
                continue
            root = self.memory.root(node.all_input_nodes[0])
            source = self.memory.last_writer(root, node) or root
            if source in self._slots and not self.is_repeatable(root, self._slots[node].stage):
                self._slots[node] = self._slots[source]


def is_leaf(node: fx.Node) -> bool:
    """Whether a value is there before the step."""
    return node.op in ("placeholder", "get_attr")


def is_random(node: fx.Node) -> bool:
    """Whether an operation draws random numbers."""
    tags: Any = getattr(node.target, "tags", ())
    return node.target is DRAW or torch.Tag.nondeterministic_seeded in tags


def reads_of(node: fx.Node) -> list[fx.Node]:
    """Return what an operation reads, without the token that orders random draws."""
    if node.target is DRAW:
        return [value for value in node.args[1:] if isinstance(value, fx.Node)]
    return list(node.all_input_nodes)


def _is_impure(node: fx.Node) -> bool:
    return node.op != "call_function" or is_writing(node) or is_random(node)


def is_written_input(source: Source | None) -> bool:
    """Whether other calls see what is written to an input."""
    return isinstance(source, Bound | Argument | Sum)


def bytes_of(node: fx.Node) -> int:
    """Return the size of a value."""
    value = node.meta.get("val")
    return value.nbytes if isinstance(value, Tensor) else 0
