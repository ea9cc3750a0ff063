import copy
import io

import pytest
import torch
from torch import nn

import poptorch
from poptorch import AutoStage, Phase, Stage


class Two(nn.Module):
    """Two layers, each in a block."""

    def __init__(self, devices=(0, 1), names=("a", "b")):
        super().__init__()
        self.one = poptorch.BeginBlock(nn.Linear(2, 2), names[0], devices[0])
        self.two = poptorch.BeginBlock(nn.Linear(2, 2), names[1], devices[1])

    def forward(self, x):
        return poptorch.identity_loss(self.two(self.one(x)), "mean")


def options(strategy=None, accumulation=1, iterations=1):
    opts = poptorch.Options().deviceIterations(iterations)
    opts.Training.gradientAccumulation(accumulation)
    return opts if strategy is None else opts.setExecutionStrategy(strategy)


def test_annotations_change_neither_class_nor_state_nor_value():
    plain = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
    annotated = copy.deepcopy(plain)
    assert poptorch.BeginBlock(annotated[1], "end", ipu_id=1) is annotated[1]
    assert type(annotated[1]) is nn.Linear
    assert list(annotated.state_dict()) == list(plain.state_dict())
    x = torch.ones(1, 2)
    torch.testing.assert_close(annotated(x), plain(x))
    opts = options(poptorch.ShardedExecution())
    torch.testing.assert_close(poptorch.inferenceModel(annotated, opts)(x), plain(x))


def test_a_second_annotation_is_refused_until_removed():
    layer = poptorch.BeginBlock(nn.Linear(1, 1), "a")
    with pytest.raises(poptorch.Error, match="already been assigned to a block"):
        poptorch.BeginBlock(layer, "b")
    outer = nn.Sequential(layer)
    poptorch.removeBlocks(outer)
    poptorch.BeginBlock(layer, "b")


def test_annotations_survive_copies_and_files():
    layer = poptorch.BeginBlock(nn.Linear(1, 1), "a", ipu_id=2)
    buffer = io.BytesIO()
    torch.save(layer, buffer)
    buffer.seek(0)
    for twin in (copy.copy(layer), copy.deepcopy(layer), torch.load(buffer, weights_only=False)):
        assert poptorch.module_repr(twin).startswith("BeginBlock(user_id=a, ipu_id=2) Linear(")


def test_callables_become_legacy_blocks_and_other_things_are_refused():
    block = poptorch.BeginBlock(torch.sin, "a")
    assert isinstance(block, poptorch.LegacyBeginBlockFn)
    assert block(torch.zeros(1)) == 0
    with pytest.raises(poptorch.Error, match="Module or a callable"):
        poptorch.BeginBlock(3)


def test_print_shows_the_tree(capsys):
    poptorch.print(nn.Sequential(poptorch.BeginBlock(nn.ReLU(), "r")))
    assert capsys.readouterr().out == (
        "Sequential(\n  (0): BeginBlock(user_id=r, ipu_id=None) ReLU()\n)\n"
    )


def test_scopes_and_functions_are_recorded_in_order():
    @poptorch.BlockFunction("double", ipu_id=1)
    def double(x):
        return x * 2

    class Scoped(nn.Module):
        def forward(self, x):
            with poptorch.Block("plus", ipu_id=0):
                x = x + 1
            return double(x)

    assert double(torch.ones(1)) == 2
    opts = options(poptorch.PipelinedExecution(Stage("plus"), Stage("double")), iterations=2)
    assert poptorch.inferenceModel(Scoped(), opts)(torch.ones(2)).tolist() == [4, 4]
    opts = options(poptorch.PipelinedExecution("plus"), iterations=2)
    with pytest.raises(AssertionError, match="'double'"):
        poptorch.inferenceModel(Scoped(), opts)(torch.ones(2))


def test_blocks_without_a_name_are_numbered():
    class Numbered(nn.Module):
        def forward(self, x):
            poptorch.Block.useAutoId()
            poptorch.Block.start(ipu_id=0)
            x = x + 1
            poptorch.Block.start(ipu_id=0)
            return x

    opts = options(poptorch.ShardedExecution("0", "1"))
    assert poptorch.inferenceModel(Numbered(), opts)(torch.ones(1)) == 2
    with pytest.raises(AssertionError, match="'1'"):
        poptorch.inferenceModel(Numbered(), options(poptorch.ShardedExecution("0")))(torch.ones(1))


def test_pipelines_need_enough_micro_batches():
    x = torch.randn(2, 2)
    with pytest.raises(
        poptorch.Error,
        match="gradientAccumulation must be greater than or equal to the number of pipeline",
    ):
        poptorch.trainingModel(Two(), options(accumulation=2))(x)
    poptorch.trainingModel(Two(), options(accumulation=3))(torch.randn(3, 2))
    with pytest.raises(poptorch.Error, match="deviceIterations must be greater"):
        poptorch.inferenceModel(Two(), options())(x)
    poptorch.inferenceModel(Two(), options(iterations=2))(x)


@pytest.mark.parametrize("backend", ["capture", "eager"])
def test_a_failed_check_changes_nothing(backend, monkeypatch):
    monkeypatch.setenv("TORCHKILN_BACKEND", backend)
    model = poptorch.trainingModel(Two())
    weight = model.one.weight.detach().clone()
    for _ in range(2):
        with pytest.raises(poptorch.Error, match="gradientAccumulation"):
            model(torch.randn(2, 2))
    assert model._program.num_compiles == 0
    assert torch.equal(model.one.weight, weight)


def test_device_numbers_are_checked():
    sharded = poptorch.ShardedExecution(AutoStage.SameAsIpu)
    x = torch.randn(2, 2)
    with pytest.raises(AssertionError, match="has no ipu_id"):
        poptorch.trainingModel(Two((None, None)), options(sharded))(x)
    with pytest.raises(poptorch.Error, match="3 IPUs, which is not a power of 2"):
        poptorch.trainingModel(Two((0, 2)), options(sharded))(x)
    poptorch.trainingModel(Two((0, 2)), options(sharded).autoRoundNumIPUs())(x)
    increment = poptorch.ShardedExecution(AutoStage.AutoIncrement)
    poptorch.trainingModel(Two((None, None)), options(increment))(x)


# strategies


def test_stages_hold_blocks_and_a_device():
    stage = Stage("a", "b")
    assert stage.blocks == ["a", "b"]
    assert stage.ipu(3) is stage
    with pytest.raises(AssertionError):
        Stage(1)


def test_phases_hold_stages():
    phase = Phase(Stage("a"), Stage("b"))
    assert phase.ipus(0, 2).stage(1).blocks == ["b"]
    assert Phase("a", "b").stage(0).blocks == ["a", "b"]
    with pytest.raises(AssertionError, match="only Stage objects"):
        Phase(Stage("a"), "b")
    with pytest.raises(AssertionError, match="number of IPUs"):
        phase.ipus(0)


@pytest.mark.parametrize("kind", [poptorch.PipelinedExecution, poptorch.ShardedExecution])
def test_staged_strategies_find_the_stage_of_a_block(kind):
    strategy = kind(Stage("a"), ["b", "c"], "d")
    assert strategy.stage("c").blocks == ["b", "c"]
    with pytest.raises(AssertionError, match="Unknown block id"):
        strategy.stage("e")
    with pytest.raises(AssertionError, match="two stages"):
        kind(Stage("a"), "a")
    with pytest.raises(AssertionError, match="after an AutoStage"):
        kind(AutoStage.SameAsIpu, "a")
    assert "AutoIncrement" in repr(kind(AutoStage.AutoIncrement))


@pytest.mark.parametrize(
    "kind",
    [
        poptorch.PhasedExecution,
        poptorch.SerialPhasedExecution,
        poptorch.ParallelPhasedExecution,
    ],
)
def test_phased_strategies_hold_phases(kind):
    strategy = kind(Phase("a"), Stage("b"), ["c", "d"], [Stage("e"), Stage("f")])
    assert strategy.phase(2).stage(0).blocks == ["c", "d"]
    assert strategy.stage("f").blocks == ["f"]
    assert strategy.useSeparateBackwardPhase() is strategy
    with pytest.raises(AssertionError, match="at least one"):
        kind()
    with pytest.raises(AssertionError, match="phase number"):
        strategy.phase(4)


def test_phased_settings_are_checked():
    serial = poptorch.SerialPhasedExecution(Phase("a"))
    assert serial.setTensorsLiveness(poptorch.Liveness.OffChipAfterFwd) is serial
    with pytest.raises(AssertionError):
        serial.setTensorsLiveness(1)
    parallel = poptorch.ParallelPhasedExecution(Phase("a"))
    assert parallel.sendTensorsOffChipAfterFwd(False) is parallel


def test_a_phased_strategy_is_accepted_as_the_others_are():
    class Blocks(torch.nn.Module):
        def forward(self, x):
            with poptorch.Block("a"):
                x = x + 1
            with poptorch.Block("b"):
                return x * 2

    strategy = poptorch.PhasedExecution(Phase("a"), Phase("b"))
    options = poptorch.Options().setExecutionStrategy(strategy)
    assert poptorch.inferenceModel(Blocks(), options)(torch.ones(2)).tolist() == [4, 4]
    options = poptorch.Options().setExecutionStrategy(poptorch.PhasedExecution(Phase("a")))
    with pytest.raises(AssertionError, match="'b'"):
        poptorch.inferenceModel(Blocks(), options)(torch.ones(2))
