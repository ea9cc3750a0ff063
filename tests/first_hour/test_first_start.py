"""The first start on a machine: helpers are built before the first step, and a bar says so."""

from __future__ import annotations

import time

import pytest
import torch
from torch import nn

from torchkiln import Options, training_model
from torchkiln.apps.schnet._steps import EagerStep
from torchkiln.models import SchNet
from torchkiln.ops import segment_sum
from torchkiln.runtime.compile import _helpers, _progress

BUILD_SECONDS = 0.2


class Pooled(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x, batch):
        total = segment_sum(self.layer(x), batch, 2)
        return nn.functional.mse_loss(total, torch.zeros_like(total))


@pytest.fixture
def new_machine(monkeypatch, watched):
    """No helper is built yet, and building takes a moment; somebody watches."""
    built = []

    def prepare(names, tell=lambda done, total: None):
        tell(0, len(names))
        time.sleep(BUILD_SECONDS)
        tell(len(names), len(names))
        built.extend(sorted(names))

    for module in (_progress, _helpers):
        monkeypatch.setattr(module, "missing_natives", sorted)
        monkeypatch.setattr(module, "prepare_natives", prepare)
    return built


def test_helpers_are_built_before_the_first_step_and_count_as_compilation(new_machine, capsys):
    program = training_model(Pooled(), Options(backend="capture"))
    program.compile(torch.ones(4, 4), torch.tensor([0, 0, 1, 1]))
    assert new_machine == ["_segment_sum"]
    assert program.compilation_time >= BUILD_SECONDS
    assert "training step: native helpers 0/1" in capsys.readouterr().err


def test_plain_eager_pytorch_builds_them_before_its_first_step_too(new_machine, capsys):
    model = SchNet(8, 8, 1, 4)
    step = EagerStep(model, Options(), torch.optim.SGD(model.parameters(), 0.1))
    seconds = step.compile({})
    assert seconds is not None
    assert seconds >= BUILD_SECONDS
    assert new_machine == ["_cfconv", "_refine", "_segment_sum", "_softplus_mlp"]
    assert "Building native helpers: 100%" in capsys.readouterr().err


def test_a_log_file_gets_no_bars(new_machine, monkeypatch, capsys):
    monkeypatch.undo()  # standard error of a test is no terminal
    program = training_model(Pooled(), Options(backend="capture"))
    program.compile(torch.ones(4, 4), torch.tensor([0, 0, 1, 1]))
    assert capsys.readouterr().err == ""
