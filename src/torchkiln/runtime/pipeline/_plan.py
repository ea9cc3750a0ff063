"""`StagePlan`: what a process must know about the division of a step, besides its own code."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, final

from torch import Tensor, fx

from torchkiln.core import CaptureError
from torchkiln.runtime.call._binding import Binding
from torchkiln.runtime.pipeline._division import is_random
from torchkiln.runtime.pipeline._parts import PartEntry, StagePart
from torchkiln.runtime.pipeline._routes import OutputForm


@final
@dataclass(frozen=True, slots=True, eq=False)
class StagePlan:
    """The parts of all stages, and which of them this process runs.

    Args:
        parts: In the order of stages.
        stage: That of this process.
    """

    parts: tuple[StagePart, ...]
    stage: int
    # Outputs of the program by their flat position, and where each of the stage's bound tensors is
    # among those that it has.
    outputs: dict[int, OutputForm] = field(init=False)
    places: dict[int, int] = field(init=False)
    # Whether any stage draws random numbers.
    draws: bool = field(init=False)

    def __post_init__(self) -> None:
        # Forms are read off graphs, which a build uses up.
        object.__setattr__(self, "outputs", _outputs(self.parts))
        entries = [entry for part in self.parts for entry in part.entries.values()]
        nodes = itertools.chain.from_iterable(entry.entry.graph.graph.nodes for entry in entries)
        object.__setattr__(self, "draws", any(map(is_random, nodes)))
        chosen = sorted(self.part.bound)
        object.__setattr__(self, "places", {index: place for place, index in enumerate(chosen)})

    @property
    def part(self) -> StagePart:
        """What this process runs."""
        return self.parts[self.stage]

    def own_binding(self, binding: Binding) -> Binding:
        """Return the module's tensors that this stage uses."""
        chosen = set(self.part.bound)
        num_parameters, num_buffers = len(binding.parameters), len(binding.buffers)
        kinds: tuple[list[Any], list[Any], list[Any]] = ([], [], [])
        for index, bound in enumerate(binding.bound):
            kind = (index >= num_parameters) + (index >= num_parameters + num_buffers)
            if index in chosen:
                kinds[kind].append(bound)
        return Binding(binding.module, *kinds)

    def describe(self, binding: Binding) -> dict[str, str]:
        """Return what must be the same in all processes, in short texts by names for people."""
        names = [bound.name for bound in binding.bound]
        told = {}
        for part in self.parts:
            at = f"stage {part.stage}"
            told[f"tensors of {at}"] = str([names[index] for index in part.bound])
            told[f"parameters of {at}"] = str(part.parameters)
            # Each message has a tag of its own: their order is nobody's business.
            for entry, sends in part.sends.items():
                told[f"messages of {entry} from {at}"] = str(sorted(map(str, sends)))
            for entry, receives in part.receives.items():
                told[f"messages of {entry} to {at}"] = str(sorted(map(str, receives)))
            told[f"outputs of {at}"] = str(part.outputs)
        return told


def _outputs(parts: Sequence[StagePart]) -> dict[int, OutputForm]:
    """Return the outputs of the program, each made by the first stage that has it."""
    found: dict[int, OutputForm] = {}
    for part in parts:
        forms = {
            name: value
            for entry in part.entries.values()
            for name, value in zip(entry.results, _values(entry), strict=True)
        }
        for position, name in part.outputs.items():
            value = forms[name]
            form = OutputForm(part.stage, name, tuple(value.shape), value.dtype)
            found.setdefault(position, form)
    return dict(sorted(found.items()))


def _values(entry: PartEntry) -> list[Tensor]:
    (output,) = [node for node in entry.entry.graph.graph.nodes if node.op == "output"]
    results: Sequence[fx.Node] = output.args[0]
    return [result.meta["val"] for result in results]


def refuse_stale_buffers(parts: Sequence[StagePart], binding: Binding) -> None:
    """Refuse a tensor that forward of one stage changes and another one uses.

    Raises:
        CaptureError: It would see what the tensor was in the beginning.
    """
    names = [bound.name for bound in binding.bound]
    for part in parts:
        for index in part.written_buffers:
            others = [other.stage for other in parts if other is not part and index in other.bound]
            if others:
                raise CaptureError(
                    f"forward of stage {part.stage} changes {names[index]!r}, which stage "
                    f"{others[0]} uses, too; put the modules that use it into one stage"
                )
