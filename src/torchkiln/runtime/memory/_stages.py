"""How much memory each stage of a pipeline needs."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from torchkiln.core import PipelineSchedule
from torchkiln.runtime.capture._step import StepFunction
from torchkiln.runtime.memory._graph import plan_graph
from torchkiln.runtime.memory._prediction import state_bytes, sum_bytes
from torchkiln.runtime.optim._arrangement import Arrangement
from torchkiln.runtime.pipeline._parts import Kept, PartEntry, Receive, StagePart


@dataclass(frozen=True, slots=True)
class StageMemory:
    """What one stage holds, for micro-batches like those that were recorded.

    Args:
        stage: Its number.
        parameter_bytes: Weights, buffers and plain tensor attributes that it reads or writes.
        gradient_sum_bytes: Sums of the gradients of its parameters.
        optimizer_bytes: State of the optimiser for them.
        kept_bytes: What it keeps of one micro-batch between forward and backward.
        num_kept: Of how many micro-batches at once: the first stage is furthest ahead. One, if they
            go through the stages one at a time.
        forward_bytes: What forward (or inference) receives and allocates at its peak, results
            included.
        backward_bytes: What backward receives and allocates at its peak.
        sent_bytes: What it sends for one micro-batch.
        received_bytes: What it receives for one micro-batch.
    """

    stage: int
    parameter_bytes: int
    gradient_sum_bytes: int
    optimizer_bytes: int
    kept_bytes: int
    num_kept: int
    forward_bytes: int
    backward_bytes: int
    sent_bytes: int
    received_bytes: int

    @property
    def total_bytes(self) -> int:
        """The peak: either a forward whose results come to those kept, or a backward."""
        always = self.parameter_bytes + self.gradient_sum_bytes + self.optimizer_bytes
        forward = max(self.num_kept - 1, 0) * self.kept_bytes + self.forward_bytes
        backward = self.num_kept * self.kept_bytes + self.backward_bytes
        return always + max(forward, backward)


def measure_stages(
    parts: Iterable[StagePart], step: StepFunction, arrangement: Arrangement | None
) -> list[StageMemory]:
    """Return the memory of each stage where operators run one by one."""
    return [_measure(part, step, arrangement) for part in parts]


def _measure(part: StagePart, step: StepFunction, arrangement: Arrangement | None) -> StageMemory:
    forward = next(iter(part.entries.values()))
    backward = part.entries.get("backward")
    names = list(part.parameters)
    sent = {send.name: len(send.to) for sends in part.sends.values() for send in sends}
    sizes = {name: size for e in part.entries.values() for name, size in _results(e).items()}
    received = {name: sum(map(_size, receives)) for name, receives in part.receives.items()}
    return StageMemory(
        stage=part.stage,
        parameter_bytes=sum(step.binding.bound[index].tensor.nbytes for index in part.bound),
        gradient_sum_bytes=sum(sum_bytes(arrangement, names).values()),
        optimizer_bytes=sum(state_bytes(arrangement, names).values()),
        kept_bytes=0 if backward is None else _kept_bytes(backward),
        num_kept=0 if backward is None else _num_kept(part, step),
        forward_bytes=_peak(forward) + next(iter(received.values())),
        backward_bytes=0 if backward is None else _peak(backward) + received["backward"],
        sent_bytes=sum(count * sizes[name] for name, count in sent.items()),
        received_bytes=sum(received.values()),
    )


def _num_kept(part: StagePart, step: StepFunction) -> int:
    if step.options.pipeline_schedule is PipelineSchedule.SEQUENTIAL:
        return 1
    return part.num_stages - part.stage


def _peak(entry: PartEntry) -> int:
    """Return what an entry allocates at its peak, without its inputs."""
    return max(plan_graph(entry.entry).live_bytes(), default=0)


def _kept_bytes(backward: PartEntry) -> int:
    return sum(
        tensor.nbytes
        for source, tensor in zip(backward.inputs, backward.entry.inputs, strict=True)
        if isinstance(source, Kept)
    )


def _size(receive: Receive) -> int:
    return math.prod(receive.shape) * receive.dtype.itemsize


def _results(entry: PartEntry) -> dict[str, int]:
    """Return the sizes of the results by name."""
    made = entry.entry.graph.graph.output_node().all_input_nodes
    return {name: node.meta["val"].nbytes for name, node in zip(entry.results, made, strict=True)}
