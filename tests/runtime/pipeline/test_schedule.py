"""Orders of micro-batches: complete, free of deadlocks, and as lean as they promise."""

from __future__ import annotations

import pytest

from torchkiln.core import PipelineSchedule
from torchkiln.runtime.pipeline._schedule import BACKWARD, FORWARD, Turn, inference_turns
from torchkiln.runtime.pipeline._schedule import training_turns as turns_of

SIZES = [(2, 3), (2, 16), (3, 5), (4, 7), (4, 32), (3, 1), (4, 2)]
SCHEDULES = list(PipelineSchedule)
PIPELINED = PipelineSchedule.PIPELINED


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize(("num_stages", "count"), SIZES)
def test_each_micro_batch_runs_once_in_order(schedule, num_stages, count):
    for stage in range(num_stages):
        turns = turns_of(schedule, stage, num_stages, count)
        for entry in (FORWARD, BACKWARD):
            own = [turn.micro_batch for turn in turns if turn.entry == entry]
            assert own == list(range(count))
        for number in range(count):
            assert turns.index(Turn(FORWARD, number)) < turns.index(Turn(BACKWARD, number))


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize(("num_stages", "count"), SIZES)
def test_no_stage_waits_for_ever(schedule, num_stages, count):
    waiting = [turns_of(schedule, stage, num_stages, count) for stage in range(num_stages)]
    done: set[tuple[int, Turn]] = set()
    while any(waiting):
        before = len(done)
        for stage, turns in enumerate(waiting):
            while turns and _needs(stage, turns[0], num_stages) <= done:
                done.add((stage, turns.pop(0)))
        assert len(done) > before, waiting


def _needs(stage: int, turn: Turn, num_stages: int) -> set[tuple[int, Turn]]:
    if turn.entry == FORWARD:
        return {(earlier, turn) for earlier in range(stage)}
    later = {(other, turn) for other in range(stage + 1, num_stages)}
    return {(stage, Turn(FORWARD, turn.micro_batch)), *later}


@pytest.mark.parametrize(("num_stages", "count"), SIZES)
def test_a_stage_holds_no_more_micro_batches_than_stages_follow(num_stages, count):
    for stage in range(num_stages):
        held = most = 0
        for turn in turns_of(PIPELINED, stage, num_stages, count):
            held += 1 if turn.entry == FORWARD else -1
            most = max(most, held)
        assert most == min(num_stages - stage, count)


def test_one_forward_and_one_backward_in_turn():
    first = turns_of(PIPELINED, 0, 2, 4)
    words = " ".join(f"{turn.entry[0]}{turn.micro_batch}" for turn in first)
    assert words == "f0 f1 b0 f2 b1 f3 b2 b3"
    last = turns_of(PIPELINED, 1, 2, 4)
    assert [turn.entry for turn in last] == [FORWARD, BACKWARD] * 4


def test_sequential_holds_one_micro_batch():
    turns = turns_of(PipelineSchedule.SEQUENTIAL, 0, 3, 4)
    assert all(a.micro_batch == b.micro_batch for a, b in zip(turns[::2], turns[1::2], strict=True))
    assert [turn.entry for turn in turns] == [FORWARD, BACKWARD] * 4


def test_inference_runs_forward_alone():
    assert [tuple(turn) for turn in inference_turns(3)] == [("infer", i) for i in range(3)]
