"""Which micro-batches a call returns, in which shape; in which order inputs are consumed."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor, nn

from torchkiln.core import Anchor, CaptureError, InputGrouping, Options, OutputMode
from torchkiln.runtime import identity_loss, inference_model, training_model

BACKENDS = ("eager", "capture")


class Echo(nn.Module):
    """Returns its input, a scalar of it, and the loss; the weight counts the updates."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(()))

    def forward(self, x: Tensor):
        # d loss / d weight = -1: with SGD of lr 1 and mean reduction, weight = number of updates.
        loss = identity_loss(-self.weight, "none")
        return x + 0, x.sum(), loss


def program_for(training: bool, backend: str = "capture", **settings):
    module = Echo()
    options = Options(backend=backend, show_progress=False, **settings)
    if not training:
        return inference_model(module, options)
    return training_model(module, options, torch.optim.SGD(module.parameters(), lr=1.0))


def rows(count: int, per_batch: int = 2) -> Tensor:
    """Return `count` micro-batches; each row holds its own number."""
    return torch.arange(float(count * per_batch))[:, None]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("loops", list(itertools.product([1, 2, 3], [1, 2], [1, 2])))
def test_all_returns_every_micro_batch_in_order(loops, backend):
    iterations, accumulation, replicas = loops
    program = program_for(
        True,
        backend,
        device_iterations=iterations,
        gradient_accumulation=accumulation,
        replication_factor=replicas,
        output_mode="all",
    )
    total = iterations * accumulation * replicas
    x = rows(total)
    echo, sums, loss = program(x)
    assert torch.equal(echo, x)
    expected = x.view(total, 2).sum(1)
    assert torch.equal(sums.reshape(-1), expected)
    assert sums.shape == ((total,) if total > 1 else ())
    # Every micro-batch of an iteration sees the weights from before its update.
    updates = torch.arange(float(iterations)).repeat_interleave(accumulation * replicas)
    assert torch.equal(-loss.reshape(-1), updates)
    assert program.module.weight == iterations


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("loops", list(itertools.product([1, 2], repeat=3)))
def test_final_returns_the_last_micro_batch_of_each_replica(loops, backend):
    iterations, accumulation, replicas = loops
    program = program_for(
        True,
        backend,
        device_iterations=iterations,
        gradient_accumulation=accumulation,
        replication_factor=replicas,
        output_mode="final",
    )
    x = rows(iterations * accumulation * replicas)
    echo, sums, _ = program(x)
    assert torch.equal(echo, x[-2 * replicas :])
    assert sums.shape == ((replicas,) if replicas > 1 else ())
    assert torch.equal(sums.reshape(-1), x[-2 * replicas :].view(replicas, 2).sum(1))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("loops", list(itertools.product([1, 2], repeat=3)))
def test_sum_adds_over_iterations_and_accumulation_per_replica(loops, backend):
    iterations, accumulation, replicas = loops
    program = program_for(
        True,
        backend,
        device_iterations=iterations,
        gradient_accumulation=accumulation,
        replication_factor=replicas,
        output_mode="sum",
    )
    x = rows(iterations * accumulation * replicas)
    echo, sums, _ = program(x)
    expected = x.view(iterations * accumulation, replicas * 2, 1).sum(0)
    assert torch.equal(echo, expected)
    assert torch.equal(sums.reshape(-1), expected.view(replicas, 2).sum(1))
    assert sums.shape == ((replicas,) if replicas > 1 else ())


@pytest.mark.parametrize(("period", "kept"), [(1, [0, 1, 2, 3]), (2, [1, 3]), (4, [3])])
def test_every_n_returns_whole_iterations(period, kept):
    program = program_for(
        True,
        device_iterations=4,
        gradient_accumulation=2,
        replication_factor=2,
        output_mode="every_n",
        output_period=period,
    )
    x = rows(16)
    echo, sums, _ = program(x)
    assert torch.equal(echo, x.view(4, 8, 1)[kept].reshape(-1, 1))
    assert sums.shape == (len(kept) * 4,)


def test_examples_of_the_specification():
    x = torch.randn(10, 1, 5, 6)
    expected = {"all": (10, x), "every_n": (2, x[[4, 9]]), "final": (1, x[-1:])}
    for mode, (size, value) in expected.items():
        program = program_for(False, device_iterations=10, output_mode=mode, output_period=5)
        echo = program(x)[0]
        assert echo.shape == (size, 1, 5, 6)
        assert torch.equal(echo, value)
    program = program_for(False, device_iterations=10, output_mode="sum")
    torch.testing.assert_close(program(x)[0], x.sum(0, keepdim=True))


@pytest.mark.parametrize(
    ("mode", "shape"), [("all", (20,)), ("every_n", (4,)), ("final", ()), ("sum", ())]
)
def test_scalar_loss_of_a_training_program(mode, shape):
    program = program_for(True, device_iterations=20, output_mode=mode, output_period=5)
    assert program(rows(20))[2].shape == shape


def test_default_mode_is_all_for_inference_and_final_for_training():
    assert program_for(False).options.output_mode is OutputMode.ALL
    assert program_for(True).options.output_mode is OutputMode.FINAL
    assert program_for(False, device_iterations=3)(rows(3))[0].shape == (6, 1)
    assert program_for(True, device_iterations=3)(rows(3))[0].shape == (2, 1)


def test_sum_of_booleans_counts():
    class Positive(nn.Module):
        def forward(self, x):
            return x > 2, x.int()

    options = Options(device_iterations=3, output_mode="sum", backend="capture")
    flags, numbers = inference_model(Positive(), options)(torch.tensor([1.0, 3.0, 5.0]))
    assert numbers.tolist() == [9]
    assert int(flags) == 2


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    ("grouping", "slices"),
    [(InputGrouping.CONSECUTIVE, [0, 0, 1, 1]), (InputGrouping.ORTHOGONAL, [0, 1, 0, 1])],
)
def test_replicas_of_a_group_receive_the_same_input(grouping, slices, backend):
    program = program_for(
        False,
        backend,
        replication_factor=4,
        input_group_size=2,
        input_grouping=grouping,
    )
    x = rows(2)
    echo = program(x)[0]
    assert torch.equal(echo, torch.cat([x[2 * i : 2 * i + 2] for i in slices]))


def test_groups_advance_with_iterations_and_accumulation():
    program = program_for(
        True,
        device_iterations=2,
        gradient_accumulation=2,
        replication_factor=2,
        input_group_size=2,
        output_mode="all",
    )
    x = rows(4, per_batch=1)
    assert program(x)[0][:, 0].tolist() == [0, 0, 1, 1, 2, 2, 3, 3]


def test_every_tensor_argument_is_cut_even_when_nested():
    class Pair(nn.Module):
        def forward(self, pair, *, more):
            return pair[0].sum(), pair[1]["deep"].shape[0] * torch.ones(1), more + 0

    options = Options(device_iterations=2, backend="capture")
    sums, sizes, more = inference_model(Pair(), options)(
        (torch.arange(4.0), {"deep": torch.ones(6)}), more=torch.tensor([7, 8])
    )
    assert sums.tolist() == [1, 5]
    assert sizes.tolist() == [3]  # a constant of the program: returned as it is
    assert more.tolist() == [7, 8]


def test_accumulation_equals_one_larger_batch():
    def train(**settings) -> Tensor:
        torch.manual_seed(0)
        layer = nn.Linear(3, 1)

        class Mean(nn.Module):
            def __init__(self):
                super().__init__()
                self.layer = layer

            def forward(self, x):
                return nn.functional.mse_loss(self.layer(x), torch.zeros(len(x), 1))

        lr = settings.pop("lr", 0.1)
        optimizer = torch.optim.SGD(layer.parameters(), lr=lr)
        training_model(Mean(), Options(backend="capture", **settings), optimizer)(
            torch.linspace(-1, 1, 12).view(4, 3)
        )
        return layer.weight.detach().clone()

    whole = train()
    torch.testing.assert_close(train(gradient_accumulation=2), whole)
    torch.testing.assert_close(train(replication_factor=4), whole)
    torch.testing.assert_close(train(gradient_accumulation=2, reduction="sum", lr=0.05), whole)


# -- anchors -----------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", BACKENDS)
def test_anchored_gradients_losses_and_updated_weights(backend):
    program = program_for(
        True,
        backend,
        device_iterations=2,
        gradient_accumulation=2,
        anchors={
            "gradient": Anchor("Gradient___weight", OutputMode.ALL),
            "updated": Anchor("UpdatedVar___weight", OutputMode.ALL),
            "loss": Anchor("loss"),
        },
    )
    program(rows(4))
    assert program.anchored("gradient").tolist() == [-1, -1, -1, -1]
    assert program.anchored("updated").tolist() == [1, 2]
    assert program.anchored("loss") == -1
    with pytest.raises(KeyError, match="not anchored"):
        program.anchored("other")
    assert {"loss", "Gradient___weight", "UpdatedVar___weight"} <= set(program.tensor_names())


class TwoNames(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(2, 2, bias=False)
        self.second = nn.Module()
        self.second.same = self.first.weight
        with torch.no_grad():
            self.first.weight.copy_(torch.eye(2))

    def forward(self, x):
        return identity_loss(self.first(x), "sum")


@pytest.mark.parametrize("backend", BACKENDS)
def test_each_name_of_a_shared_parameter_can_be_anchored(backend):
    names = ["first.weight", "second.same"]
    prefixes = {"own": "", "gradient": "Gradient___", "updated": "UpdatedVar___"}
    anchors = {
        f"{what} {name}": Anchor(prefix + name)
        for what, prefix in prefixes.items()
        for name in names
    }
    module = TwoNames()
    optimizer = torch.optim.SGD(module.parameters(), lr=1.0)
    program = training_model(module, Options(backend=backend, anchors=anchors), optimizer)
    program(torch.ones(1, 2))
    for name in names:
        assert torch.equal(program.anchored(f"own {name}"), torch.eye(2))
        assert torch.equal(program.anchored(f"gradient {name}"), torch.ones(2, 2))
        assert torch.equal(program.anchored(f"updated {name}"), torch.eye(2) - 1)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("training", [True, False])
def test_every_listed_tensor_can_be_anchored(backend, training):
    names = program_for(training, backend, **(settings := {"device_iterations": 2}))
    names(rows(2))
    anchors = {name: Anchor(name, OutputMode.ALL) for name in names.tensor_names()}
    assert {"input/x", "weight"} <= set(anchors)
    replicated = settings | {"replication_factor": 2}
    program = program_for(training, backend, anchors=anchors, **replicated)
    x = rows(4)
    program(x)
    assert torch.equal(program.anchored("input/x"), x)
    assert program.anchored("weight").tolist() == ([0, 1] if training else [0, 0])


class Constant(nn.Module):
    def __init__(self):
        super().__init__()
        self.offset = torch.tensor([3.0])
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, x):
        self.calls += 1
        return x + self.offset


def test_buffers_and_plain_tensors_can_be_anchored():
    anchors = {name: Anchor(name) for name in ("offset", "calls")}
    options = Options(backend="capture", anchors=anchors, device_iterations=3)
    module = Constant()
    program = inference_model(module, options)
    program(torch.ones(3, 1))
    assert program.anchored("offset").tolist() == [3, 3, 3]
    assert program.anchored("calls").tolist() == [0, 1, 2]
    module.offset = torch.tensor([9.0])  # a constant of the program keeps its value
    program(torch.ones(3, 1))
    assert program.anchored("offset").tolist() == [3, 3, 3]


@pytest.mark.parametrize(
    "name", ["nonsense", "Gradient___first.weigth", "UpdatedVar___nonsense", "Gradient___loss"]
)
def test_unknown_anchors_are_refused_before_compiling(name):
    options = Options(backend="capture", anchors={"short": Anchor(name)})
    program = training_model(TwoNames(), options)
    with pytest.raises(CaptureError, match=f"no tensor '{name}' to anchor.*first.weight"):
        program(torch.ones(1, 2))
    assert program.num_captures == 0


def test_perf_counters_have_one_time_per_micro_batch():
    program = program_for(True, device_iterations=2, gradient_accumulation=3, output_mode="all")
    assert program.perf_counters()["input"] == [[]]
    program(rows(6))
    counters = program.perf_counters()
    assert set(counters) == {"input", "input_complete", "output", "output_complete"}
    assert [len(times) for times in counters["output"]] == [6, 6, 6]
    assert counters["input"][0] == sorted(counters["input"][0])
