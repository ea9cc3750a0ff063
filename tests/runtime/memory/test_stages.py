"""Memory of the stages of a pipeline, and where a program is best cut into them."""

from __future__ import annotations

import itertools

import pytest
import torch
from _parts_in_turn import Recorded, Turn, assert_parts_do_the_same
from _staged_models import STAGED
from torch import Tensor, nn

from torchkiln.core import Options, OptionsError
from torchkiln.runtime import Program, inference_model, training_model
from torchkiln.runtime.memory._balance import cut_evenly
from torchkiln.runtime.memory._stages import measure_stages


def no_memory(piece: int, start: int, end: int) -> float:
    return 0.0


# -- cutting a row --------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(5))
def test_the_slowest_piece_is_nearly_as_fast_as_any_cut_allows(seed):
    rng = torch.Generator().manual_seed(seed)
    seconds = torch.rand(9, generator=rng).tolist()

    def slowest(begins: tuple[int, ...]) -> float:
        places = [0, *begins, len(seconds)]
        return max(sum(seconds[a:b]) for a, b in itertools.pairwise(places))

    for count in (2, 3, 4):
        found = cut_evenly(seconds, count, range(9), no_memory)
        best = min(map(slowest, itertools.combinations(range(1, 9), count - 1)))
        assert found is not None
        assert len(found) == count - 1
        assert slowest(tuple(found)) <= 1.021 * best


def test_of_equal_times_the_least_memory_is_taken():
    seconds = [1.0, 0.0, 1.0]
    sizes = [1.0, 5.0, 1.0]

    def memory(piece: int, start: int, end: int) -> float:
        return (2 - piece) * sum(sizes[start:end])

    assert cut_evenly(seconds, 2, {1, 2}, memory) == [1]
    assert cut_evenly(seconds, 2, {2}, memory) == [2]


def test_time_is_given_up_for_a_limit_of_memory():
    seconds, sizes = [4.0, 1.0, 4.0], [2.0, 6.0, 1.0]

    def memory(piece: int, start: int, end: int) -> float:
        return sum(sizes[start:end])

    assert cut_evenly(seconds, 2, {1, 2}, memory) == [1]
    assert cut_evenly([4.0, 1.0, 4.5], 2, {1, 2}, memory) == [2]
    assert cut_evenly([4.0, 1.0, 4.5], 2, {1, 2}, memory, limit=7.5) == [1]


def test_places_may_be_too_few():
    assert cut_evenly([1.0, 1.0, 1.0], 3, {1}, no_memory) is None


# -- memory ---------------------------------------------------------------------------------------


def recorded_case(name: str) -> Recorded:
    case = STAGED[name]
    torch.manual_seed(0)
    return Recorded(case.make(), case.batch(), case.blocks, **case.options)


@pytest.mark.parametrize("name", ["decoder", "u-net, 3", "blocks"])
def test_what_is_kept_sent_and_held_is_what_really_is(name):
    recorded = recorded_case(name)
    memories = measure_stages(recorded.parts, recorded.step, recorded.arrangement)
    tensors, sums, scalars = recorded.values()
    turn = Turn(recorded, tensors, sums, scalars, recorded.micro_batch)
    turn.run("forward", recorded.parts)
    for part, memory in zip(recorded.parts, memories, strict=True):
        values = {**turn.received[part.stage], **turn.made[part.stage]}
        assert memory.kept_bytes == sum(values[key].nbytes for key in part.kept)
        assert memory.num_kept == len(recorded.parts) - part.stage
        assert memory.parameter_bytes == sum(tensors[index].nbytes for index in part.bound)
        assert memory.gradient_sum_bytes == sum(sums[key].nbytes for key in part.parameters)
        assert memory.optimizer_bytes == 2 * memory.gradient_sum_bytes, "Adam"
        own = {n for n in part.kept if n in part.entries["forward"].results}
        assert memory.forward_bytes >= sum(values[key].nbytes for key in own)
        assert memory.total_bytes > memory.num_kept * memory.kept_bytes
    assert sum(m.sent_bytes for m in memories) == sum(m.received_bytes for m in memories) > 0
    parameters = {name for part in recorded.parts for name in part.parameters}
    assert parameters == set(recorded.whole.updated)


# -- choosing -------------------------------------------------------------------------------------


def program_of(name: str, training: bool = True) -> tuple[Program, nn.Module]:
    case = STAGED[name]
    torch.manual_seed(0)
    module = case.make()
    values = {k: v for k, v in case.options.items() if training or k != "recompute"}
    options = Options(backend="capture", show_progress=False, **values)
    if not training:
        return inference_model(module, options), module
    return training_model(module, options, torch.optim.Adam(module.parameters())), module


@pytest.mark.parametrize("training", [True, False], ids=["training", "inference"])
@pytest.mark.parametrize(
    "name",
    [
        "decoder",
        pytest.param("u-net, 3", marks=pytest.mark.slow),
        pytest.param("u-net, recomputed", marks=pytest.mark.slow),
        pytest.param("recomputed by choice", marks=pytest.mark.slow),
    ],
)
def test_what_is_chosen_can_be_cut_and_is_balanced(name, training):
    program, module = program_of(name, training)
    plan = program.plan_stages(2, STAGED[name].batch())
    assert len(plan.pipeline) == len(plan.stages) == 2
    assert sum(stage.time_share for stage in plan.stages) == pytest.approx(1)
    assert max(stage.time_share for stage in plan.stages) < 0.75
    assert plan.gradient_accumulation == (3 if training else 1)
    blocks = tuple((block,) for block in plan.pipeline)
    values = {k: v for k, v in STAGED[name].options.items() if training or k != "recompute"}
    recorded = Recorded(module, STAGED[name].batch(), blocks, training, **values)
    assert_parts_do_the_same(recorded)


@pytest.mark.slow
def test_measured_times_move_the_cut():
    program, _ = program_of("decoder")
    batch = STAGED["decoder"].batch()
    late = program.plan_stages(2, batch, measured={"layers.2.feed.0": 1.0, "head": 1.0})
    early = program.plan_stages(2, batch, measured={"tokens": 1.0, "layers.0.norm1": 1.0})
    order = [name for name, _ in program.module.named_modules()]
    assert order.index(early.pipeline[1]) < order.index("layers.1")
    assert order.index(late.pipeline[1]) > order.index("layers.2")
    assert late.is_measured


def test_one_micro_batch_at_a_time_keeps_the_values_of_one():
    program, _ = program_of("decoder")
    batch = STAGED["decoder"].batch()
    pipelined = program.plan_stages(2, batch)
    program.options = program.options.replace(pipeline_schedule="sequential")
    sequential = program.plan_stages(2, batch)
    assert [stage.memory.num_kept for stage in pipelined.stages] == [2, 1]
    assert [stage.memory.num_kept for stage in sequential.stages] == [1, 1]
    assert sequential.gradient_accumulation == 1
    assert pipelined.gradient_accumulation == 3


def test_weights_that_two_layers_share_stay_in_one_stage():
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(4))
            self.layers[2].weight = self.layers[1].weight

        def forward(self, x: Tensor) -> Tensor:
            for layer in self.layers:
                x = layer(x).tanh()
            return nn.functional.mse_loss(x, torch.zeros(4, 8))

    module = Tied()
    options = Options(backend="capture", show_progress=False)
    program = training_model(module, options, torch.optim.SGD(module.parameters(), 0.1))
    (_, cut) = program.plan_stages(2, (torch.ones(4, 8),)).pipeline
    assert cut in ("layers.1", "layers.3")
    with pytest.raises(OptionsError, match="into 3 stages at most, not into 4"):
        program.plan_stages(4, (torch.ones(4, 8),))
    with pytest.raises(OptionsError, match="at least 2 stages"):
        program.plan_stages(1, (torch.ones(4, 8),))
