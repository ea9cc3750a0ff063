import pytest
import torch

from torchkiln.training import WeightAverage


def test_the_average_decays_by_update():
    torch.manual_seed(0)
    module = torch.nn.Linear(2, 1)
    average = WeightAverage(module, 0.9, updates_per_call=3)
    average.update()
    before = average.module.bias.item()
    with torch.no_grad():
        module.bias += 1.0
    average.update()
    assert average.module.bias.item() - before == pytest.approx(1 - 0.9**3, abs=1e-6)


def test_buffers_are_copied():
    module = torch.nn.BatchNorm1d(2)
    average = WeightAverage(module, 0.9)
    module(torch.randn(8, 2) + 3)
    average.update()
    assert torch.equal(average.module.running_mean, module.running_mean)
    assert average.source is module
