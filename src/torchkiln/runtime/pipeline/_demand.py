"""What each slot must compute, and which values it needs of others."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from torch import fx

from torchkiln.core import CaptureError
from torchkiln.runtime.pipeline._division import (
    Division,
    Slot,
    bytes_of,
    is_leaf,
    is_random,
    is_written_input,
    reads_of,
)
from torchkiln.runtime.pipeline._memory import ignored_by
from torchkiln.runtime.pipeline._parts import Bound
from torchkiln.torch_internals._fx import counts_places_of_memory


@dataclass(frozen=True, slots=True)
class Version:
    """A piece of memory as it is at one time.

    Args:
        root: Whose memory it is.
        writer: The last operation that wrote to it; None: as it was made.
        slot: Where it is at that time.
        is_passed: Whether backward hands it on to an earlier stage.
    """

    root: fx.Node
    writer: fx.Node | None
    slot: Slot
    is_passed: bool = False

    @property
    def sender(self) -> Slot:
        """Where others get it from."""
        return Slot(self.slot.stage, is_backward=True) if self.is_passed else self.slot

    def name_of(self, node: fx.Node) -> str:
        """Return how a value in this memory is called by everyone."""
        written = "" if self.writer is None else f"_after_{self.writer.name}"
        return f"{node.name}{written}{'_passed' if self.is_passed else ''}"


@dataclass(slots=True)
class Needs:
    """What a slot computes, takes and gives."""

    nodes: set[fx.Node] = field(default_factory=set)
    leaves: set[fx.Node] = field(default_factory=set)
    # Memory of other slots, with the values in it that are read.
    imports: dict[Version, list[fx.Node]] = field(default_factory=dict)
    # In the order in which they were found, so that the same step becomes the same code.
    exports: dict[Version, None] = field(default_factory=dict)


class Demand:
    """The needs of all slots, found from the results of the step backwards."""

    def __init__(self, division: Division, outputs: list[fx.Node], training: bool) -> None:
        self.division = division
        self.memory = division.memory
        stages = range(division.num_stages)
        self.slots = [Slot(stage) for stage in stages]
        if training:
            self.slots += [Slot(stage, is_backward=True) for stage in reversed(stages)]
        self.needs = {slot: Needs() for slot in self.slots}
        # Outputs of the program: the version of each, and the value in it.
        self.outputs = [self._take_output(node) for node in outputs]
        for slot in reversed(self.slots):
            self._collect(slot)

    def version(self, value: fx.Node, reader: fx.Node, slot: Slot) -> Version | None:
        """Return the memory of another slot that `reader` reads; None: it is this slot's own."""
        memory, division = self.memory, self.division
        root = memory.root(value)
        writer = memory.last_writer(root, reader)
        if is_leaf(root) and value in ignored_by(reader):
            return None
        if writer is None and is_leaf(root):
            return self._version_of_input(root, reader, slot)
        if writer is None and division.is_repeatable(root, slot.stage):
            return None
        source = division.slot(writer or root)
        if source == slot:
            return None
        if not source.is_backward and slot.is_backward and source.stage > slot.stage:
            return Version(root, writer, source, is_passed=True)
        if division.time(source) > division.time(slot):
            raise CaptureError(
                f"{reader.target} in stage {slot.stage} of the pipeline reads what stage "
                f"{source.stage} computes later; list the blocks in the order in which forward "
                "calls them"
            )
        return Version(root, writer, source)

    def _version_of_input(self, root: fx.Node, reader: fx.Node, slot: Slot) -> Version | None:
        """Return the version of an input before anybody wrote to it."""
        memory, division = self.memory, self.division
        writers = [division.slot(writer) for writer in memory.writers(root)]
        if not writers or slot in writers:
            return None
        source = division.inputs.sources.get(root)
        if isinstance(source, Bound) and any(writer.stage != slot.stage for writer in writers):
            raise CaptureError(
                f"buffer {division.inputs.bound_name(root)!r} is changed in stage "
                f"{writers[0].stage} of the pipeline and used in stage {slot.stage}, whose process "
                "does not see the change; use it in one stage, or give each stage its own"
            )
        same_stage = [writer for writer in writers if writer.stage == slot.stage]
        if same_stage and slot.is_backward:
            # Forward of a later micro-batch may have written to it by now.
            return Version(root, None, same_stage[0])
        return None

    def local_writers(self, root: fx.Node, slot: Slot) -> list[fx.Node]:
        """Return who writes to a piece of memory in this slot."""
        return [w for w in self.memory.writers(root) if self.division.slot(w) == slot]

    # -- collecting -------------------------------------------------------------------------

    def _take_output(self, node: fx.Node) -> tuple[Version, fx.Node]:
        memory = self.memory
        root, end = memory.root(node), memory.nodes[-1]
        writer = memory.last_writer(root, end)
        slot = Slot(self.division.num_stages - 1) if is_leaf(root) else None
        version = Version(root, writer, slot or self.division.slot(writer or root))
        self.needs[version.slot].exports[version] = None
        return version, memory.same(node)

    def _collect(self, slot: Slot) -> None:
        memory, needs = self.memory, self.needs[slot]
        waiting = [node for node in memory.nodes if self._is_essential(node, slot)]
        for version in list(needs.exports):
            if version.is_passed:
                origin = Version(version.root, version.writer, version.slot)
                self._import(needs, origin, version.root)
            elif version.writer is not None:
                place = memory.places[version.writer]
                own = self.local_writers(version.root, slot)
                waiting += [writer for writer in own if memory.places[writer] <= place]
                waiting += self._own_root(version.root, slot)
            else:
                waiting += self._own_root(version.root, slot)
            if is_leaf(version.root) and not version.is_passed:
                needs.leaves.add(version.root)
        while waiting:
            node = waiting.pop()
            if node in needs.nodes:
                continue
            needs.nodes.add(node)
            for value in reads_of(node):
                waiting += self._use(value, node, slot)

    def _is_essential(self, node: fx.Node, slot: Slot) -> bool:
        """Whether a slot runs an operation for what it does, not for its result."""
        if node.op != "call_function":
            return False
        sources = self.division.inputs.sources
        writes = any(
            is_written_input(sources.get(root)) and node in self.memory.writers(root)
            for root in map(self.memory.root, node.all_input_nodes)
        )
        return (writes or is_random(node)) and self.division.slot(node) == slot

    def _own_root(self, root: fx.Node, slot: Slot) -> list[fx.Node]:
        if is_leaf(root):
            return []
        is_own = self.division.slot(root) == slot
        return [root] if is_own or self.division.is_repeatable(root, slot.stage) else []

    def _use(self, value: fx.Node, reader: fx.Node, slot: Slot) -> list[fx.Node]:
        """Note that a slot reads a value; return the operations that it needs for that."""
        memory, needs = self.memory, self.needs[slot]
        version = self.version(value, reader, slot)
        if version is not None:
            self._import(needs, version, memory.same(value))
            return []
        root = memory.root(value)
        if is_leaf(root):
            needs.leaves.add(root)
        place = memory.places[reader]
        writers = [w for w in self.local_writers(root, slot) if memory.places[w] < place]
        return [*self._own_root(root, slot), *writers]

    def _import(self, needs: Needs, version: Version, value: fx.Node) -> None:
        needs.imports.setdefault(version, []).append(value)
        self.needs[version.sender].exports[version] = None


@dataclass(frozen=True, slots=True)
class Transport:
    """A value that leaves its slot.

    Args:
        version: Its memory.
        node: The value; what others need is this, or views of it.
    """

    version: Version
    node: fx.Node

    @property
    def name(self) -> str:
        """How everyone calls it."""
        return self.version.name_of(self.node)


def choose_transport(demand: Demand, version: Version, readers: Iterable[Slot]) -> Transport:
    """Return what one stage is given of a piece of memory: one value for all of its needs.

    It is a view, if that is much smaller than the whole, and the whole otherwise.
    """
    memory = demand.memory
    chains = [
        memory.chain(value)
        for slot in readers
        for value in demand.needs[slot].imports.get(version, ())
    ]
    written = any(demand.local_writers(version.root, slot) for slot in readers)
    if written or not chains:
        return Transport(version, version.root)
    common = [nodes[0] for nodes in zip(*chains, strict=False) if len(set(nodes)) == 1]
    if any(counts_places_of_memory(node.target) for chain in chains for node in chain):
        common = common[:1]
    smallest = min((node for node in common if bytes_of(node)), key=bytes_of, default=version.root)
    is_worth_it = 2 * bytes_of(smallest) <= bytes_of(version.root)
    return Transport(version, smallest if is_worth_it else version.root)
