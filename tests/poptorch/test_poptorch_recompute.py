"""Recomputation in the original's words."""

import copy

import torch
from torch import nn

import poptorch


class Net(nn.Module):
    """Pieces that end in a checkpoint."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(4))
        self.loss = nn.MSELoss()

    def forward(self, x, y):
        for layer in self.layers:
            for _ in range(4):
                x = torch.sin(layer(x))
            x = poptorch.recomputationCheckpoint(x)
        return x, self.loss(x, y)


def training_model(module, recomputes):
    options = poptorch.Options()
    options.showCompilationProgressBar(False)
    if recomputes:
        options._Popart.set("autoRecomputation", 4)
    optimizer = poptorch.optim.Adam(module.parameters(), lr=0.01)
    return poptorch.trainingModel(module, options, optimizer)


def test_recomputation_changes_memory_and_not_results():
    torch.manual_seed(0)
    batch = torch.randn(2000, 8), torch.randn(2000, 8)
    module = Net()
    plain = training_model(copy.deepcopy(module), recomputes=False)
    recomputing = training_model(copy.deepcopy(module), recomputes=True)
    before, after = (model.memory_report(*batch) for model in (plain, recomputing))
    assert after.recomputed == ("",)
    assert after.step_bytes < 0.6 * before.step_bytes
    for _ in range(2):
        assert torch.equal(plain(*batch)[1], recomputing(*batch)[1])


def test_recomputation_is_no_longer_only_recorded():
    options = poptorch.Options()
    options._Popart.set("autoRecomputation", 4)
    assert options._to_torchkiln().recompute == "auto"
    options._Popart.set("autoRecomputation", 0)
    assert options._to_torchkiln().recompute is None
