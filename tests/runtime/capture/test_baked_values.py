"""Forward's Python runs once: what it takes from outside is compiled in, and the user is told."""

import datetime
import pathlib
import random
import time
import warnings
from datetime import date
from random import gauss
from time import perf_counter

import numpy as np
import pytest
import torch
from torch import nn

import poptorch
from torchkiln.core import Options
from torchkiln.runtime import inference_model, training_model

OPTIONS = Options(backend="capture", show_progress=False)
X = torch.ones(2, 2)
DICE = random.Random(0)


class Net(nn.Module):
    """Multiplies with what `take` returns."""

    def __init__(self, take):
        super().__init__()
        self.take = take
        self.layer = nn.Linear(2, 2)
        self.generator = np.random.default_rng(0)
        self.numbers = DICE

    def forward(self, x, y=None):
        out = self.layer(x) * float(self.take(self))
        return out if y is None else nn.functional.mse_loss(out, y)


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "factor.txt"
    path.write_text("2.0")
    np.save(tmp_path / "factor.npy", np.ones(()))
    return path


def read_open(path):
    with open(path) as stream:
        return stream.read()


TAKEN = {
    "random": (lambda net, path: random.random(), "random numbers of the module random"),
    "gauss": (lambda net, path: gauss(0, 1), "random numbers of the module random"),
    "numpy": (lambda net, path: np.random.rand(), r"random numbers of numpy\.random"),
    "generator": (lambda net, path: net.generator.random(), "random numbers of generator"),
    "own dice": (lambda net, path: net.numbers.random(), r"random numbers of .*numbers"),
    "clock": (lambda net, path: time.time(), r"time\.time\(\) \(.*test_baked_values\.py:\d+\)"),
    "own clock": (lambda net, path: perf_counter(), r"time\.perf_counter\(\)"),
    "now": (lambda net, path: datetime.datetime.now().second, r"datetime\.now\(\)"),
    "today": (lambda net, path: date.today().day, r"date\.today\(\)"),
    "file": (lambda net, path: read_open(path), r"the content of .*factor\.txt"),
    "path": (lambda net, path: path.read_text(), r"the content of .*factor\.txt"),
    "array": (lambda net, path: np.load(path.with_suffix(".npy")), r"the content of .*factor\.npy"),
}


@pytest.mark.parametrize("name", TAKEN)
def test_what_is_compiled_in_is_told_once(name, file):
    take, told = TAKEN[name]
    program = inference_model(Net(lambda net: take(net, file)), OPTIONS)
    with pytest.warns(UserWarning, match=f"the same in every call: {told}") as caught:
        results = [program(X) for _ in range(3)]
    assert len(caught) == 1
    assert torch.equal(results[0], results[2])


def test_several_values_are_one_warning(file):
    def take(net):
        return random.random() + time.time() + float(file.read_text())

    net = Net(take)
    program = training_model(
        net, OPTIONS.replace(gradient_accumulation=2), torch.optim.Adam(net.parameters())
    )
    with pytest.warns(UserWarning, match="factor.txt.*time.*module random") as caught:
        program(torch.ones(4, 2), torch.ones(4, 2))
    assert len(caught) == 1


def write(net, path):
    path.with_suffix(".log").write_text("seen")
    return 1


def draw_with_torch(net, path):
    return torch.rand(()).new_ones(()).numel()


@pytest.mark.parametrize("take", [write, draw_with_torch, lambda net, path: 2])
def test_other_code_is_not_warned_about(take, file):
    inference_model(Net(lambda net: take(net, file)), OPTIONS)(X)


def test_everything_is_as_before_afterwards(file):
    before = open, time.time, perf_counter, pathlib.io.open
    with pytest.warns(UserWarning, match="compiled in"):
        inference_model(Net(lambda net: perf_counter()), OPTIONS)(X)
    assert before == (open, time.time, perf_counter, pathlib.io.open)


def test_the_eager_backend_runs_python_in_each_call():
    program = inference_model(Net(lambda net: random.random()), Options(backend="eager"))
    assert not torch.equal(program(X), program(X))


def test_functions_on_the_host_run_in_each_call():
    class Noisy(nn.Module):
        def __init__(self):
            super().__init__()
            self.noise = poptorch.CPU(lambda x: x + random.random() + time.time() % 1, "noise")

        def forward(self, x):
            return self.noise(x)

    state = random.getstate()
    program = inference_model(Noisy(), OPTIONS)
    program.compile(X)
    assert random.getstate() == state
    assert not torch.equal(program(X), program(X))


def test_a_model_of_poptorch_warns_too(monkeypatch):
    monkeypatch.setenv("TORCHKILN_BACKEND", "capture")
    with pytest.warns(UserWarning, match="compiled in"):
        poptorch.inferenceModel(Net(lambda net: random.random()))(X)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        poptorch.inferenceModel(Net(lambda net: 1))(X)
