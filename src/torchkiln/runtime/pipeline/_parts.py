"""What each stage of a pipeline runs: graphs of its own, and what they take and give."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import torch
from torch import fx

from torchkiln.runtime.capture._capture import Entry


@dataclass(frozen=True, slots=True)
class Bound:
    """A tensor of the module: its position in `step.binding.bound`."""

    index: int


@dataclass(frozen=True, slots=True)
class Sum:
    """The sum of the gradients of the parameter with that name."""

    name: str


@dataclass(frozen=True, slots=True)
class Scalars:
    """The table of numbers that all parameters share: the last of the hyper-parameter tables."""


@dataclass(frozen=True, slots=True)
class Argument:
    """A tensor of the micro-batch: its position among the flat tensors."""

    index: int


@dataclass(frozen=True, slots=True)
class Kept:
    """A result of this stage's own forward of the same micro-batch."""

    name: str


@dataclass(frozen=True, slots=True)
class Received:
    """A result that another stage sent: an earlier one in forward, a later one in backward."""

    name: str
    stage: int


Source = Bound | Sum | Scalars | Argument | Kept | Received


@dataclass(frozen=True, slots=True)
class Send:
    """A result that other stages need."""

    name: str
    to: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Receive:
    """A value that another stage sends, as the graph expects it: dense, with these strides."""

    name: str
    stage: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype


@dataclass(frozen=True, slots=True, eq=False)
class PartEntry:
    """Forward, backward or inference of one stage, for one micro-batch.

    Args:
        entry: The graph, of flat tensors in and out.
        inputs: What each of its placeholders is, in order.
        results: A name for each of its outputs, in order; unique among all stages.
    """

    entry: Entry
    inputs: tuple[Source, ...]
    results: tuple[str, ...]


@dataclass(frozen=True, slots=True, eq=False)
class StagePart:
    """All that one stage runs.

    Args:
        stage: Its number.
        num_stages: How many there are.
        entries: "forward" and "backward" in training, "infer" otherwise.
        parameters: Names of those that this stage updates, in the arrangement's order.
        bound: Positions of all bound tensors that it reads or writes.
        sends: By entry, the results that other stages need.
        receives: By entry, what other stages send; before the entry runs, all of it has arrived.
        kept: Names of what backward needs of forward: results of forward, or values that forward
            received.
        outputs: By the flat position of an output of the program, the result that it is.
        written_buffers: Positions of the bound tensors that forward writes to.
    """

    stage: int
    num_stages: int
    entries: dict[str, PartEntry]
    parameters: tuple[str, ...]
    bound: tuple[int, ...]
    sends: dict[str, tuple[Send, ...]]
    receives: dict[str, tuple[Receive, ...]]
    kept: tuple[str, ...]
    outputs: dict[int, str]
    written_buffers: tuple[int, ...]

    def without_graphs(self) -> StagePart:
        """Return the part for those who only run it: graphs need more memory than all else."""
        nothing = Entry(fx.GraphModule({}, fx.Graph()), [])
        entries = {
            name: dataclasses.replace(entry, entry=nothing) for name, entry in self.entries.items()
        }
        return dataclasses.replace(self, entries=entries)
