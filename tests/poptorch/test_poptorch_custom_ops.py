"""Operators of the original's hardware, by the functions that are registered for them."""

import numpy as np
import pytest
import torch
from torch import nn

import poptorch
import torchkiln
from torchkiln.ops import _custom, _host


@pytest.fixture(autouse=True)
def _nothing_is_left(monkeypatch):
    monkeypatch.setattr(_custom, "_registered", {})
    monkeypatch.setattr(_host, "_functions", dict(_host._functions))


class Cubes(nn.Module):
    def __init__(self, name="Cube", attributes=None):
        super().__init__()
        self.layer = nn.Linear(3, 3)
        self.name = name
        self.attributes = attributes

    def forward(self, x, y=None):
        x = self.layer(x)
        (out,) = poptorch.custom_op([x], self.name, "mine", 1, [x], attributes=self.attributes)
        return out if y is None else (out, nn.functional.mse_loss(out, y))


X, Y = torch.linspace(-1, 1, 12).view(4, 3), torch.ones(4, 3)


def cube(x, scale=1.0):
    return scale * x**3


def test_an_operator_that_nobody_registered_says_how_to():
    how = r"custom_op\('Cube', 'mine'\).*torchkiln\.register_custom_op\('Cube', function, domain='m"
    with pytest.raises(NotImplementedError, match=how):
        poptorch.custom_op([X], "Cube", "mine", 1, [X])
    with pytest.raises(NotImplementedError, match=how):
        poptorch.inferenceModel(Cubes())(X)


@pytest.mark.parametrize("domain", ["mine", None])
def test_a_registered_function_is_part_of_the_program_and_trains(domain):
    torchkiln.register_custom_op("Cube", cube, domain=domain)
    net = Cubes(attributes={"scale": 2.0})
    twin = nn.Linear(3, 3)
    twin.load_state_dict(net.layer.state_dict())
    optimizer = torch.optim.SGD(twin.parameters(), lr=0.1)
    expected = cube(twin(X), 2.0)
    nn.functional.mse_loss(expected, Y).backward()
    optimizer.step()
    model = poptorch.trainingModel(net, optimizer=torch.optim.SGD(net.parameters(), lr=0.1))
    torch.testing.assert_close(model(X, Y)[0], expected.detach())
    torch.testing.assert_close(net.layer.state_dict(), twin.state_dict())


def test_the_domain_decides_between_two():
    torchkiln.register_custom_op("Cube", cube)
    torchkiln.register_custom_op("Cube", torch.neg, domain="mine")
    (mine,) = poptorch.custom_op([X], "Cube", "mine", 1, [X])
    (other,) = poptorch.custom_op([X], "Cube", "others", 1, [X])
    assert torch.equal(mine, -X)
    assert torch.equal(other, cube(X))


def test_python_on_the_host_runs_in_each_call():
    calls = []

    def by_numpy(x, powers):
        calls.append(powers)
        return [torch.from_numpy(np.power(x.numpy(), power)) for power in powers]

    class Powers(nn.Module):
        def forward(self, x):
            return poptorch.custom_op([x], "Pow", "mine", 1, [x, x], {"powers": (2, 3)})

    torchkiln.register_custom_op("Pow", by_numpy, on_host=True)
    model = poptorch.inferenceModel(Powers())
    for x in (X, 2 * X):
        torch.testing.assert_close(model(x), [x**2, x**3])
    assert len(calls) > 2


def test_an_operator_of_torch_library_is_taken():
    library = torch.library.Library("extras_test", "DEF")
    library.define("triple(Tensor x) -> Tensor")
    library.impl("triple", lambda x: 3 * x, "CompositeExplicitAutograd")
    library.impl("triple", torch.empty_like, "Meta")
    torchkiln.register_custom_op("Triple", torch.ops.extras_test.triple)
    net = Cubes("Triple")
    with torch.no_grad():
        torch.testing.assert_close(poptorch.inferenceModel(net)(X), 3 * net.layer(X))


def test_results_of_another_form_are_an_error():
    torchkiln.register_custom_op("Cube", lambda x: x[:2])
    with pytest.raises(poptorch.Error, match=r"float32\[2, 3\], but its example_outputs are"):
        poptorch.custom_op([X], "Cube", "mine", 1, [X])


def test_a_custom_operator_is_a_function():
    with pytest.raises(TypeError, match="a function of tensors"):
        torchkiln.register_custom_op("Cube", 3)


def test_a_program_of_another_function_is_not_found_in_the_cache(monkeypatch, tmp_path):
    keys = []

    def key(*parts):
        keys.append(dict(parts[-1]))

    monkeypatch.setattr("torchkiln.runtime.compile._builder.fast_key", key)
    monkeypatch.setattr(
        "torchkiln.runtime.compile._tracing.build_through_cache",
        lambda *arguments: pytest.fail("asked for a key"),
    )
    options = torchkiln.Options(backend="inductor", cache_dir=tmp_path, show_progress=False)
    for function in (torch.neg, torch.abs):
        torchkiln.register_custom_op("Cube", function)
        with pytest.raises(BaseException, match="asked for a key"):
            torchkiln.inference_model(Cubes(), options)(X)
    assert [ops[None, "Cube"][0] for ops in keys] == [torch.neg, torch.abs]
