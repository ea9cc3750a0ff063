"""Choosing the stages of a pipeline for a program, so that they take equal time."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from torchkiln.core import OptionsError, PipelineSchedule
from torchkiln.runtime.capture._capture import capture
from torchkiln.runtime.capture._step import StepFunction
from torchkiln.runtime.memory._balance import cut_evenly
from torchkiln.runtime.memory._segments import Segment, find_segments
from torchkiln.runtime.memory._stages import StageMemory, measure_stages
from torchkiln.runtime.optim._arrangement import Arrangement
from torchkiln.runtime.passes._stages import Stages
from torchkiln.runtime.pipeline._cut import cut_step


@dataclass(frozen=True, slots=True)
class PlannedStage:
    """A stage, as it was chosen.

    Args:
        first: The module that it begins with.
        last: The last module that begins in it.
        time_share: Its share of the time of forward and backward.
        memory: That it needs.
    """

    first: str
    last: str
    time_share: float
    memory: StageMemory


@dataclass(frozen=True, slots=True)
class StagePlan:
    """The stages of a pipeline.

    Args:
        stages: In order.
        training: Whether they train.
        is_measured: Whether times are from a profile, not estimated.
        gradient_accumulation: The least number of micro-batches of an update; 1 for inference.
        adds_recomputation: Whether the sizes are those with `recompute="auto"`, which the program
            does not have: without it the stages would not fit.
    """

    stages: tuple[PlannedStage, ...]
    training: bool
    is_measured: bool
    gradient_accumulation: int
    adds_recomputation: bool = False

    @property
    def largest_bytes(self) -> int:
        """The peak of the stage that needs most memory."""
        return max(stage.memory.total_bytes for stage in self.stages)

    @property
    def pipeline(self) -> list[str]:
        """The value for `Options(pipeline=...)`."""
        return [stage.first for stage in self.stages]


def plan_stages(
    step: StepFunction,
    micro_batch: list[Tensor],
    arrangement: Arrangement | None,
    num_stages: int,
    *,
    measured: Mapping[str, float] | None = None,
    limit_bytes: int | None = None,
) -> StagePlan:
    """Return where to cut a step so that stages take equal time, and what each then needs.

    Args:
        step: The step.
        micro_batch: With the shapes of its inputs.
        arrangement: Of the parameters that are updated; None: inference.
        num_stages: How many there shall be.
        measured: Time of each module without those inside it; None: estimated.
        limit_bytes: What a stage may use; more time is accepted to stay below, and values are
            computed again in backward if nothing else helps.

    Raises:
        OptionsError: if there are not as many places to cut at.
    """
    if num_stages < 2:
        raise OptionsError(f"a pipeline has at least 2 stages, not {num_stages}")
    needed = 1
    if arrangement is not None:
        is_sequential = step.options.pipeline_schedule is PipelineSchedule.SEQUENTIAL
        needed = max(step.options.gradient_accumulation, 1 if is_sequential else 2 * num_stages - 1)
        # Only a step of several micro-batches has forward and backward apart from the update.
        options = step.options.replace(gradient_accumulation=max(needed, 2))
        step = dataclasses.replace(step, options=options)

    def plan(step: StepFunction) -> StagePlan:
        made = _plan(step, micro_batch, arrangement, num_stages, measured, limit_bytes)
        return dataclasses.replace(made, gradient_accumulation=needed)

    found = plan(step)
    is_recomputed = arrangement is None or step.options.recompute
    if limit_bytes is None or found.largest_bytes <= limit_bytes or is_recomputed:
        return found
    again = plan(dataclasses.replace(step, options=step.options.replace(recompute="auto")))
    if again.largest_bytes >= found.largest_bytes:
        return found
    return dataclasses.replace(again, adds_recomputation=True)


def _plan(
    step: StepFunction,
    micro_batch: list[Tensor],
    arrangement: Arrangement | None,
    num_stages: int,
    measured: Mapping[str, float] | None,
    limit_bytes: int | None,
) -> StagePlan:
    segments = find_segments(step, micro_batch, arrangement, num_stages, measured)
    is_sequential = step.options.pipeline_schedule is PipelineSchedule.SEQUENTIAL
    ahead = 0 if arrangement is None else 1 if is_sequential else num_stages
    begins = _choose(segments, num_stages, ahead, limit_bytes)
    pieces = _pieces(segments, begins)
    stages = Stages(tuple((piece[0].module,) for piece in pieces))
    captured = capture(step, micro_batch, arrangement, stages=stages)
    parts = cut_step(captured, step, arrangement, stages)
    total = sum(segment.seconds for segment in segments) or 1.0
    planned = [
        PlannedStage(
            piece[0].module,
            piece[-1].module,
            sum(segment.seconds for segment in piece) / total,
            memory,
        )
        for piece, memory in zip(pieces, measure_stages(parts, step, arrangement), strict=True)
    ]
    return StagePlan(
        tuple(planned),
        arrangement is not None,
        measured is not None,
        step.options.gradient_accumulation,
    )


def _choose(
    segments: list[Segment], num_stages: int, ahead: int, limit_bytes: int | None
) -> list[int]:
    # `ahead`: of how many micro-batches the first stage keeps values.
    allowed = {place for place, segment in enumerate(segments) if place and segment.can_begin}

    def memory(stage: int, start: int, end: int) -> float:
        own = segments[start:end]
        times = max(ahead - stage, min(ahead, 1))
        return sum(segment.fixed_bytes + times * segment.kept_bytes for segment in own)

    seconds = [segment.seconds for segment in segments]
    found = cut_evenly(seconds, num_stages, allowed, memory, limit_bytes)
    if found is None:
        raise OptionsError(
            f"forward can be cut into {len(allowed) + 1} stages at most, not into {num_stages}: a "
            "stage begins with a module that is called once, and weights that several modules use "
            "stay together"
        )
    return found


def _pieces(segments: list[Segment], begins: list[int]) -> list[list[Segment]]:
    ends = [*begins, len(segments)]
    return [segments[start:end] for start, end in zip([0, *begins], ends, strict=True)]
