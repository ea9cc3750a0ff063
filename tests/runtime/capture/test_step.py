"""The step as a function: everything that a run tells is in its result."""

import dataclasses

import pytest
import torch
from torch import nn

from torchkiln.core import Options
from torchkiln.runtime import training_model


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.used, self.unused = nn.Linear(3, 1), nn.Linear(3, 1)
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x):
        self.count = self.count + 1
        y = self.used(x)
        loss = nn.functional.mse_loss(y, torch.zeros_like(y))
        return {"loss": loss, "rows": x.sum(1)}


@pytest.fixture
def step_and_batch():
    torch.manual_seed(0)
    program = training_model(Net(), Options(backend="eager"))
    step, _, batch = program._begin((torch.ones(4, 3),), {})
    return step, batch


def test_a_run_returns_what_it_found_out(step_and_batch):
    step, batch = step_and_batch
    tensors = [t if t.requires_grad else t.detach() for t in step.binding.tensors]
    result = step.gradients(tensors, batch, None)
    assert [tensor.shape for tensor in result.outputs] == [(), (4,)]
    assert result.node.keys == ("loss", "rows")
    assert result.reassigned == ["count"]
    reached = dict(zip(step.trainable_names(), result.gradients, strict=True))
    assert {name for name, grad in reached.items() if grad is not None} == {
        "used.weight",
        "used.bias",
    }


def test_a_run_leaves_the_step_as_it_was(step_and_batch):
    step, batch = step_and_batch
    before = [getattr(step, field.name) for field in dataclasses.fields(step)]
    step.gradients(step.binding.tensors, batch, None)
    after = [getattr(step, field.name) for field in dataclasses.fields(step)]
    assert all(one is other for one, other in zip(before, after, strict=True))
    with pytest.raises(dataclasses.FrozenInstanceError):
        step.recompute = ("used",)
