"""In which order a stage runs its micro-batches. Pure, so that it can be tested by itself."""

from __future__ import annotations

from typing import NamedTuple

from torchkiln.core import PipelineSchedule

FORWARD, BACKWARD, INFER = "forward", "backward", "infer"


class Turn(NamedTuple):
    """One entry of the stage, run for one micro-batch."""

    entry: str
    micro_batch: int


def training_turns(
    schedule: PipelineSchedule, stage: int, num_stages: int, num_micro_batches: int
) -> list[Turn]:
    """Return what a stage runs for an update.

    With "pipelined" a stage first runs as many forwards as there are stages behind it, then one
    forward and one backward in turn, then the backwards that are left. So no stage holds the
    intermediates of more micro-batches than there are stages from it to the end.
    """
    if schedule is PipelineSchedule.SEQUENTIAL:
        return [
            Turn(entry, number)
            for number in range(num_micro_batches)
            for entry in (FORWARD, BACKWARD)
        ]
    ahead = min(num_stages - 1 - stage, num_micro_batches)
    turns = [Turn(FORWARD, number) for number in range(ahead)]
    for number in range(ahead, num_micro_batches):
        turns += [Turn(FORWARD, number), Turn(BACKWARD, number - ahead)]
    left = range(num_micro_batches - ahead, num_micro_batches)
    return turns + [Turn(BACKWARD, number) for number in left]


def inference_turns(num_micro_batches: int) -> list[Turn]:
    """Return what every stage runs for a call of an inference program."""
    return [Turn(INFER, number) for number in range(num_micro_batches)]
