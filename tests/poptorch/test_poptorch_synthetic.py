"""`enableSyntheticData`: no host data is read or handed over."""

import copy

import torch
from torch import nn

import poptorch


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(10, 10)

    def forward(self, x, y=None):
        out = self.layer(x)
        return out if y is None else (out, nn.functional.mse_loss(out, y))


def synthetic():
    return poptorch.Options().deviceIterations(4).enableSyntheticData(True)


def test_host_data_is_not_read_and_counters_stay_empty():
    model = poptorch.inferenceModel(Net(), synthetic())
    out = model(torch.full((8, 10), float("nan")))
    assert out.shape == (8, 10)
    assert out.isfinite().all()
    for times in model.getPerfCounters().values():
        assert all(entry == [] for entry in times)
    assert model.getLatency() == (0.0, 0.0, 0.0)


def test_training_hands_nothing_back():
    net = Net()
    before = copy.deepcopy(net.state_dict())
    optimizer = poptorch.optim.Adam(net.parameters(), lr=0.1)
    model = poptorch.trainingModel(net, synthetic(), optimizer)
    losses = [float(model(torch.ones(8, 10), torch.ones(8, 10))[1]) for _ in range(3)]
    optimizer.param_groups[0]["lr"] = 0.0
    model.setOptimizer(optimizer)
    losses += [float(model(torch.ones(8, 10), torch.ones(8, 10))[1]) for _ in range(2)]
    assert losses[2] < losses[0]
    assert losses[3] == losses[4]
    model.copyWeightsToHost()
    torch.testing.assert_close(net.state_dict(), before, rtol=0, atol=0)
    assert not optimizer.state


def test_it_can_be_switched_off_again():
    net = Net()
    x = torch.ones(4, 10)
    model = poptorch.inferenceModel(net, synthetic().enableSyntheticData(False))
    torch.testing.assert_close(model(x), net(x))
