"""Accumulation types of `poptorch.optim`: float32 unless float16 is asked for, for any weights."""

import copy
import io
import pickle

import pytest
import torch
from torch import nn

import poptorch
from poptorch import optim
from torchkiln.core import OptimizerError

pytestmark = pytest.mark.filterwarnings("ignore:this CPU has no")

HALF, FLOAT = torch.float16, torch.float32
MOMENTS = ("exp_avg", "exp_avg_sq")


class Regression(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.layer = nn.Linear(3, 1)

    def forward(self, x, y):
        return nn.functional.mse_loss(self.layer(x), y)


def data(dtype=HALF, seed=4):
    rng = torch.Generator().manual_seed(seed)
    return torch.randn(6, 3, generator=rng).to(dtype), torch.randn(6, 1, generator=rng).to(dtype)


def train(net, optimizer, first=0, last=3):
    dtype = net.layer.weight.dtype
    model = poptorch.trainingModel(net, optimizer=optimizer)
    losses = [model(*data(dtype, seed)).item() for seed in range(first, last)]
    model.destroy()
    return losses


def dtypes(net, optimizer):
    state = optimizer.state[net.layer.weight]
    return {name: value.dtype for name, value in state.items() if name != "step"}


@pytest.mark.parametrize("kind", [optim.Adam, optim.AdamW, optim.LAMB, torch.optim.AdamW])
def test_moments_of_half_weights_are_float32_by_default(kind):
    net = Regression().half()
    optimizer = kind(net.parameters(), lr=0.01)
    train(net, optimizer)
    assert dtypes(net, optimizer) == dict.fromkeys(MOMENTS, FLOAT)


@pytest.mark.parametrize("weights", [HALF, FLOAT])
@pytest.mark.parametrize("kind", [optim.Adam, optim.AdamW, optim.LAMB])
def test_each_moment_has_the_type_that_was_asked_for(kind, weights):
    for first, second in [(HALF, FLOAT), (FLOAT, HALF), (HALF, HALF)]:
        net = Regression().to(weights)
        optimizer = kind(
            net.parameters(),
            lr=0.01,
            first_order_momentum_accum_type=first,
            second_order_momentum_accum_type=second,
        )
        train(net, optimizer)
        assert dtypes(net, optimizer) == dict(zip(MOMENTS, (first, second), strict=True))


def test_types_of_rmsprop_and_sgd():
    net = Regression().half()
    optimizer = optim.RMSprop(
        net.parameters(),
        lr=0.01,
        momentum=0.5,
        centered=True,
        first_order_momentum_accum_type=HALF,
    )
    train(net, optimizer)
    expected = {"square_avg": FLOAT, "momentum_buffer": HALF, "grad_avg": HALF}
    assert dtypes(net, optimizer) == expected
    for chosen in (HALF, FLOAT):
        net = Regression().half()
        optimizer = optim.SGD(net.parameters(), lr=0.1, momentum=0.9, velocity_accum_type=chosen)
        train(net, optimizer)
        assert dtypes(net, optimizer) == {"momentum_buffer": chosen}


def test_float64_weights_are_not_narrowed():
    net = Regression().double()
    optimizer = optim.Adam(net.parameters(), lr=0.01)
    train(net, optimizer)
    assert dtypes(net, optimizer) == dict.fromkeys(MOMENTS, torch.float64)


class Product(nn.Module):
    """A gradient that is the input itself."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))

    def forward(self, x):
        return poptorch.identity_loss(self.weight * x, reduction="sum")


def accumulate(accum_type, values, reduction):
    net = Product()
    options = poptorch.Options()
    options.Training.gradientAccumulation(len(values))
    options.Training.accumulationAndReplicationReductionType(reduction)
    optimizer = optim.SGD(net.parameters(), lr=1.0, accum_type=accum_type)
    poptorch.trainingModel(net, options, optimizer)(torch.tensor(values))
    return -net.weight.item()


def test_sums_of_gradients_have_the_type_that_was_asked_for():
    values = [2048.0, 1.0, 1.0]
    assert accumulate(None, values, poptorch.ReductionType.Sum) == 2050.0
    assert accumulate(HALF, values, poptorch.ReductionType.Sum) == 2048.0


def test_means_in_half_do_not_overflow():
    values = [60000.0, 60000.0, 60000.0, 60000.0]
    assert accumulate(HALF, values, poptorch.ReductionType.Mean) == 60000.0


def test_a_compiled_model_refuses_other_types():
    net = Regression().half()
    model = poptorch.trainingModel(net, optimizer=optim.Adam(net.parameters()))
    model(*data())
    other = optim.Adam(net.parameters(), first_order_momentum_accum_type=HALF)
    with pytest.raises(poptorch.Error, match="dtype of exp_avg"):
        model.setOptimizer(other)


def through_bytes(values):
    buffer = io.BytesIO()
    torch.save(values, buffer)
    buffer.seek(0)
    return torch.load(buffer, weights_only=False)


@pytest.mark.parametrize("copier", [None, copy.deepcopy, lambda o: pickle.loads(pickle.dumps(o))])
@pytest.mark.parametrize("way", ["own", "torch"])
@pytest.mark.parametrize("kind", [optim.Adam, optim.AdamW, optim.LAMB])
def test_a_state_loaded_before_the_model_resumes_with_the_same_bits(kind, way, copier):
    net = Regression().half()
    optimizer = kind(net.parameters(), lr=0.01)
    train(net, optimizer)
    saved = through_bytes([net.state_dict(), optimizer.state_dict()])
    kept = through_bytes(list(optimizer.state.values()))
    expected = train(net, optimizer, 3, 6)

    other = Regression().half()
    other.load_state_dict(saved[0])
    resumed = kind(other.parameters(), lr=0.01)
    if copier is not None:
        other, resumed = copier((other, resumed))
    if way == "own":
        resumed.load_state_dict(saved[1])
    else:
        torch.optim.Optimizer.load_state_dict(resumed, saved[1])
    for one, state in zip(resumed.state.values(), kept, strict=True):
        assert all(torch.equal(one[name], value) for name, value in state.items())
        assert one["exp_avg"].dtype == FLOAT
    assert train(other, resumed, 3, 6) == expected


def test_a_state_loaded_into_a_running_model_resumes_with_the_same_bits():
    net = Regression().half()
    optimizer = optim.Adam(net.parameters(), lr=0.01)
    model = poptorch.trainingModel(net, optimizer=optimizer)
    for seed in range(3):
        model(*data(seed=seed))
    saved = through_bytes([net.state_dict(), optimizer.state_dict()])
    expected = [model(*data(seed=seed)).item() for seed in range(3, 6)]
    net.load_state_dict(saved[0])
    optimizer.load_state_dict(saved[1])
    assert [model(*data(seed=seed)).item() for seed in range(3, 6)] == expected


def test_host_steps_that_torch_cannot_do_are_refused():
    net = Regression()
    optimizer = optim.Adam(net.parameters(), first_order_momentum_accum_type=HALF)
    train(net, optimizer)
    optimizer.step()  # no gradients: nothing to do
    net(*data(FLOAT)).backward()
    with pytest.raises(OptimizerError, match=r"step\(\) of torch cannot update"):
        optimizer.step()


def test_host_steps_of_lamb_honour_the_types():
    net = Regression().half()
    optimizer = optim.LAMB(net.parameters(), second_order_momentum_accum_type=HALF)
    net(*data()).backward()
    optimizer.step()
    assert dtypes(net, optimizer) == {"exp_avg": FLOAT, "exp_avg_sq": HALF}
