"""Programs that run on generated values read nothing of the user's, and hand nothing back."""

import copy
import threading

import pytest
import torch
from torch import nn

import torchkiln
from torchkiln.core import ExecutableError, Options, OptionsError

SYNTHETIC = Options(backend="capture", synthetic_data=True, show_progress=False)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(5, 4)
        self.layer = nn.Linear(4, 3)
        self.register_buffer("position", torch.tensor([2, 0, 1]))

    def forward(self, index, x, target=None):
        out = self.layer(self.embed(index) + x)[:, self.position]
        return out if target is None else (out, nn.functional.cross_entropy(out, target))


def call(value=1.0):
    return torch.ones(6, dtype=torch.long), torch.full((6, 4), value), torch.ones(6).long()


@pytest.fixture
def net():
    torch.manual_seed(0)
    return Net()


def test_arguments_and_weights_are_not_read(net):
    index, x, _ = call(float("nan"))
    with torch.no_grad():
        net.layer.weight.fill_(float("nan"))
    program = torchkiln.inference_model(net, SYNTHETIC)
    out = program(index, x)
    assert out.isfinite().all()
    assert out.std() > 0
    assert torch.equal(out, program(index + 100, x))


def test_generated_values_are_the_same_in_each_program(net):
    first, second = (torchkiln.inference_model(net, SYNTHETIC)(*call()[:2]) for _ in range(2))
    assert torch.equal(first, second)


def test_training_leaves_module_and_optimizer_as_they_are(net):
    before = copy.deepcopy(net.state_dict())
    optimizer = torch.optim.Adam(net.parameters(), lr=0.1)
    program = torchkiln.training_model(net, SYNTHETIC, optimizer)
    losses = [float(program(*call())[1]) for _ in range(5)]
    assert losses[-1] < losses[0]
    torch.testing.assert_close(net.state_dict(), before, rtol=0, atol=0)
    assert not optimizer.state
    assert net.layer.weight.requires_grad


def test_a_changed_learning_rate_counts(net):
    optimizer = torch.optim.SGD(net.parameters(), lr=0.5)
    program = torchkiln.training_model(net, SYNTHETIC, optimizer)
    program(*call())
    optimizer.param_groups[0]["lr"] = 0.0
    program.set_optimizer(optimizer)
    losses = [float(program(*call())[1]) for _ in range(2)]
    assert losses[0] == losses[1]
    assert program.num_captures == 1


def test_other_shapes_are_refused_as_with_real_data(net):
    index, x, _ = call()
    program = torchkiln.inference_model(net, SYNTHETIC)
    program(index, x)
    with pytest.raises(torchkiln.ShapeChanged):
        program(index[:3], x[:3])


def test_what_forward_writes_to_its_input_does_not_come_back():
    class Writes(nn.Module):
        def forward(self, x):
            x.add_(1)
            return x * 2

    x = torch.zeros(4, 2)
    with pytest.warns(UserWarning, match="not contiguous"):
        torchkiln.inference_model(Writes(), SYNTHETIC)(x.t())
    torchkiln.inference_model(Writes(), SYNTHETIC)(x)
    assert not x.any()


def test_the_generator_of_torch_is_not_touched(net):
    state = torch.get_rng_state()
    torchkiln.inference_model(net, SYNTHETIC)(*call()[:2])
    assert torch.equal(state, torch.get_rng_state())


def test_tied_parameters_stay_tied():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.one = nn.Linear(3, 3)
            self.other = nn.Linear(3, 3)
            self.other.weight = self.one.weight

        def forward(self, x):
            return self.other(self.one(x))

    program = torchkiln.inference_model(Tied(), SYNTHETIC)
    assert program.module.other.weight is program.module.one.weight
    assert program(torch.ones(2, 3)).isfinite().all()


def test_lazy_layers_are_initialized_apart():
    lazy = nn.LazyLinear(2)
    assert torchkiln.inference_model(lazy, SYNTHETIC)(torch.ones(3, 4)).shape == (3, 2)
    assert isinstance(lazy.weight, nn.parameter.UninitializedParameter)


@pytest.mark.filterwarnings("ignore:this CPU has no float16 arithmetic")
def test_half_is_generated_too():
    half = nn.Linear(64, 2).half()
    out = torchkiln.inference_model(half, SYNTHETIC)(torch.ones(3, 64).half())
    assert out.dtype is torch.half
    assert out.isfinite().all()


def test_counters_are_empty(net):
    program = torchkiln.inference_model(net, SYNTHETIC)
    program(*call()[:2])
    assert program.perf_counters() == {
        "input": [[], []],
        "input_complete": [[], []],
        "output": [[]],
        "output_complete": [[]],
    }


def test_generated_weights_are_not_exported(net, tmp_path):
    program = torchkiln.inference_model(net, SYNTHETIC)
    program(*call()[:2])
    with pytest.raises(ExecutableError, match="synthetic_data"):
        program.export(tmp_path / "program")


def test_a_module_that_cannot_be_copied_is_refused(net):
    net.lock = threading.Lock()
    with pytest.raises(OptionsError, match="deepcopy"):
        torchkiln.inference_model(net, SYNTHETIC)
