"""Modules that `torch.quantization.prepare_qat` prepared train as in eager PyTorch."""

import copy
import warnings

import pytest
import torch
from _linear_loss import CAPTURE
from torch import nn

import poptorch
from torchkiln import Options, inference_model, training_model
from torchkiln.core import CaptureError


class Convolutions(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 3, 1)
        )

    def forward(self, x, y=None):
        out = self.net(x)
        return out if y is None else (out, nn.functional.mse_loss(out, y))


def prepared(qconfig=None):
    torch.manual_seed(0)
    module = Convolutions().train()
    with warnings.catch_warnings():
        # torch wants its users to go to torchao; published programs have not.
        warnings.simplefilter("ignore")
        module.qconfig = qconfig or torch.quantization.get_default_qat_qconfig("fbgemm")
        return torch.quantization.prepare_qat(module)


def batch(number):
    generator = torch.Generator().manual_seed(number)
    return tuple(torch.randn(2, 3, 8, 8, generator=generator) for _ in range(2))


def sgd(module):
    return torch.optim.SGD(module.parameters(), lr=0.05, momentum=0.9)


def assert_trains_as_eager(program, module, twin):
    optimizer = sgd(twin)
    for number in range(4):
        optimizer.zero_grad()
        expected, loss = twin(*batch(number))
        loss.backward()
        optimizer.step()
        out, got = program(*batch(number))
        torch.testing.assert_close(out, expected.detach())
        torch.testing.assert_close(got.reshape(()), loss.detach())
    state = module.state_dict()
    for name, value in twin.state_dict().items():
        torch.testing.assert_close(state[name], value, msg=lambda text, name=name: f"{name} {text}")


@pytest.mark.parametrize(
    "backend", ["eager", "capture", pytest.param("inductor", marks=pytest.mark.inductor)]
)
def test_a_prepared_module_trains_as_in_eager_pytorch(backend):
    module = prepared()
    twin = copy.deepcopy(module)
    program = training_model(module, Options(backend=backend), sgd(module))
    assert_trains_as_eager(program, module, twin)
    scales = module.net[0].weight_fake_quant.scale
    assert scales.shape == (4,)
    assert (scales != 1).all()
    program.destroy()


def test_a_prepared_module_trains_in_poptorch(monkeypatch):
    monkeypatch.setenv("TORCHKILN_BACKEND", "capture")
    module = prepared()
    twin = copy.deepcopy(module)
    program = poptorch.trainingModel(module, poptorch.Options(), sgd(module))
    assert_trains_as_eager(program, module, twin)


def test_observers_that_are_switched_off_later_need_no_other_program():
    module = prepared()
    twin = copy.deepcopy(module)
    program = training_model(module, CAPTURE, sgd(module))
    program(*batch(9))
    twin(*batch(9))
    twin.load_state_dict(module.state_dict())
    module.apply(torch.ao.quantization.disable_observer)
    twin.apply(torch.ao.quantization.disable_observer)
    x = batch(10)[0]
    infer = inference_model(copy.deepcopy(module).eval(), CAPTURE)
    torch.testing.assert_close(infer(x), twin.eval()(x).detach())
    assert program.num_compiles == 1


def test_fake_quantisation_that_decides_in_python_is_refused_by_name():
    module = prepared(torch.ao.quantization.default_qat_qconfig)
    with pytest.raises(CaptureError, match=r"prepare_qat.*get_default_qat_qconfig\('fbgemm'\)"):
        training_model(module, CAPTURE, sgd(module))(*batch(0))


def test_channels_that_were_never_observed_are_refused_by_name():
    module = prepared()
    module.apply(torch.ao.quantization.disable_observer)
    with pytest.raises(CaptureError, match=r"prepare_qat.*call the module once"):
        training_model(module, CAPTURE, sgd(module))(*batch(0))
