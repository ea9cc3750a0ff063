"""Cutting a recorded step into the parts that the stages of a pipeline run."""

from __future__ import annotations

import torch
from torch import Tensor, fx

from torchkiln.core import CaptureError
from torchkiln.runtime.capture._capture import Captured, Entry
from torchkiln.runtime.capture._step import StepFunction
from torchkiln.runtime.optim._arrangement import Arrangement
from torchkiln.runtime.passes._stages import Stages
from torchkiln.runtime.pipeline._assembly import Assembled, assemble, infer_shapes
from torchkiln.runtime.pipeline._demand import Demand, Transport, Version, choose_transport
from torchkiln.runtime.pipeline._division import Division, Inputs, Slot
from torchkiln.runtime.pipeline._memory import Memory
from torchkiln.runtime.pipeline._parts import (
    Argument,
    Bound,
    Kept,
    PartEntry,
    Receive,
    Received,
    Scalars,
    Send,
    Source,
    StagePart,
    Sum,
)
from torchkiln.torch_internals._fake_tensors import fake_mode


def cut_step(
    captured: Captured, step: StepFunction, arrangement: Arrangement | None, stages: Stages
) -> list[StagePart]:
    """Return what each stage runs of a step that was recorded with `stages`.

    All parts together, one after the other, do what the whole step does: forward of the stages in
    their order, and backward in the opposite order. The graphs of `captured` are used up.

    Raises:
        CaptureError: if the step cannot be cut there; the message says why.
    """
    return _Cut(captured, step, arrangement, stages).parts()


class _Cut:
    """A step on its way to parts."""

    def __init__(
        self,
        captured: Captured,
        step: StepFunction,
        arrangement: Arrangement | None,
        stages: Stages,
    ) -> None:
        self._num_stages = stages.num_stages
        self._training = arrangement is not None
        self._entry = captured.entries["accumulate" if self._training else "infer"]
        graph = self._entry.graph
        placeholders = [node for node in graph.graph.nodes if node.op == "placeholder"]
        self._sources = dict(zip(placeholders, _sources(captured, step), strict=True))
        names = [bound.name for bound in step.binding.bound]
        updated = captured.updated if self._training else []
        trained = frozenset(names.index(name) for name in updated)
        self._inputs = Inputs(dict(self._sources), names, trained)
        self._updated = updated
        memory = Memory(graph)
        division = Division(memory, self._inputs, self._num_stages)
        (outputs,) = graph.graph.output_node().args
        assert isinstance(outputs, list | tuple)
        flat = [node for node in outputs if isinstance(node, fx.Node)]
        self._positions = [i for i, node in enumerate(outputs) if isinstance(node, fx.Node)]
        self._demand = Demand(division, flat, self._training)
        self._division = division
        self._taken = {slot: list[Transport]() for slot in self._demand.slots}
        self._given = {slot: list[Transport]() for slot in self._demand.slots}
        self._to: dict[tuple[Slot, str], set[int]] = {}
        self._mode = fake_mode()
        # What was made so far, without values.
        self._made: dict[str, Tensor] = {}

    def parts(self) -> list[StagePart]:
        self._refuse_idle_stages()
        self._choose_transports()
        assembled: dict[Slot, Assembled] = {}
        entries: dict[Slot, PartEntry] = {}
        for slot in self._demand.slots:
            assembled[slot] = assemble(
                self._demand, slot, self._entry.graph, self._taken[slot], self._given[slot]
            )
            entries[slot] = self._entry_of(slot, assembled[slot])
        return [self._part(stage, entries) for stage in range(self._num_stages)]

    def _refuse_idle_stages(self) -> None:
        for stage in range(self._num_stages):
            if not self._demand.needs[Slot(stage)].nodes:
                raise CaptureError(
                    f"stage {stage} of the pipeline has no work: nothing that its blocks compute "
                    "is needed for the loss or the outputs; give it other blocks, or leave it out"
                )

    # -- what goes from stage to stage ------------------------------------------------------

    def _choose_transports(self) -> None:
        demand = self._demand
        for version, node in demand.outputs:
            self._give(Transport(version, node))
        for stage in range(self._num_stages):
            own = [slot for slot in demand.slots if slot.stage == stage]
            wanted = {version: None for slot in own for version in demand.needs[slot].imports}
            for version in wanted:
                readers = [slot for slot in own if version in demand.needs[slot].imports]
                transport = choose_transport(demand, version, readers)
                self._give(transport)
                for slot in readers:
                    self._taken[slot].append(transport)
                if version.sender.stage != stage:
                    self._to.setdefault((version.sender, transport.name), set()).add(stage)

    def _give(self, transport: Transport) -> None:
        given = self._given[transport.version.sender]
        if transport not in given:
            given.append(transport)

    # -- entries ----------------------------------------------------------------------------

    def _entry_of(self, slot: Slot, assembled: Assembled) -> PartEntry:
        inputs, sources = [], []
        for taken in assembled.inputs:
            if isinstance(taken, fx.Node):
                inputs.append(self._like(self._given_input(taken)))
                sources.append(self._sources[taken])
            else:
                inputs.append(self._like(self._made[taken.name]))
                sources.append(_source_of(taken.version, slot, taken.name))
        results = infer_shapes(assembled.graph, inputs, self._mode)
        self._made.update(zip(assembled.results, results, strict=True))
        entry = Entry(assembled.graph, inputs)
        return PartEntry(entry, tuple(sources), assembled.results)

    def _given_input(self, node: fx.Node) -> Tensor:
        return self._entry.inputs[list(self._sources).index(node)]

    def _like(self, tensor: Tensor) -> Tensor:
        with self._mode:
            return torch.empty_strided(
                tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device
            )

    def _part(self, stage: int, all_entries: dict[Slot, PartEntry]) -> StagePart:
        first = "forward" if self._training else "infer"
        names = {Slot(stage): first, Slot(stage, is_backward=True): "backward"}
        entries = {name: all_entries[slot] for slot, name in names.items() if slot in all_entries}
        sources = [source for entry in entries.values() for source in entry.inputs]
        bound = {source.index for source in sources if isinstance(source, Bound)}
        return StagePart(
            stage=stage,
            num_stages=self._num_stages,
            entries=entries,
            parameters=tuple(
                name for name in self._updated if self._division.stage_of_parameter(name) == stage
            ),
            bound=tuple(sorted(bound)),
            sends={name: self._sends(slot) for slot, name in names.items() if name in entries},
            receives=self._receives(stage, names, entries),
            kept=tuple(
                dict.fromkeys(source.name for source in sources if isinstance(source, Kept))
            ),
            outputs={
                position: Transport(version, node).name
                for position, (version, node) in zip(
                    self._positions, self._demand.outputs, strict=True
                )
                if version.slot.stage == stage
            },
            written_buffers=self._written(stage),
        )

    def _sends(self, slot: Slot) -> tuple[Send, ...]:
        return tuple(
            Send(transport.name, tuple(sorted(self._to[slot, transport.name])))
            for transport in self._given[slot]
            if (slot, transport.name) in self._to
        )

    def _receives(
        self, stage: int, names: dict[Slot, str], entries: dict[str, PartEntry]
    ) -> dict[str, tuple[Receive, ...]]:
        found: dict[str, dict[str, Receive]] = {name: {} for name in entries}
        for slot, name in names.items():
            for transport in self._taken.get(slot, ()):
                sender = transport.version.sender
                if sender.stage == stage:
                    continue
                # What forward of another stage made comes with forward, whoever needs it.
                entry = name if sender.is_backward else next(iter(entries))
                found[entry][transport.name] = self._receive(transport.name, sender.stage)
        return {name: tuple(receives.values()) for name, receives in found.items()}

    def _receive(self, name: str, stage: int) -> Receive:
        made = self._made[name]
        return Receive(name, stage, tuple(made.shape), made.stride(), made.dtype)

    def _written(self, stage: int) -> tuple[int, ...]:
        """Return the bound tensors that forward of a stage writes to."""
        memory, found = self._division.memory, []
        for node, source in self._sources.items():
            slots = {self._division.slot(writer) for writer in memory.writers(node)}
            if not isinstance(source, Bound) or not slots:
                continue
            stages = sorted({slot.stage for slot in slots})
            name = self._inputs.bound_name(node)
            if len(stages) > 1:
                raise CaptureError(
                    f"buffer {name!r} is changed in stage {stages[0]} of the pipeline and in stage "
                    f"{stages[1]}; change it in one stage, or give each stage its own"
                )
            if any(slot.is_backward for slot in slots):
                raise CaptureError(
                    f"buffer {name!r} is changed in backward, while forward of later micro-batches "
                    "has read it already; change it in forward"
                )
            if stages == [stage]:
                found.append(source.index)
        return tuple(found)


def _sources(captured: Captured, step: StepFunction) -> list[Source]:
    """Return what the placeholders of the recorded entry are, in order."""
    bound = [Bound(index) for index in range(len(step.binding.bound))]
    arguments = [Argument(index) for index in range(len(step.signature.forms))]
    if "accumulate" not in captured.entries:
        return [*bound, *arguments]
    return [*bound, *(Sum(name) for name in captured.updated), Scalars(), *arguments]


def _source_of(version: Version, slot: Slot, name: str) -> Source:
    """Return where a slot finds a value of another."""
    sender = version.sender
    if slot.is_backward and not sender.is_backward:
        return Kept(name)
    return Received(name, sender.stage)
