"""What torch's optimisers note about themselves, as Torchkiln relies on it."""

import pytest
import torch
from torch import nn

from torchkiln.torch_internals._optimizers import note_update, step_hooks_of


@pytest.fixture
def optimizer():
    return torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)


def test_a_schedule_is_content_with_an_update_that_was_noted(optimizer):
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    note_update(optimizer)
    scheduler.step()  # warnings are errors


def test_a_schedule_warns_without_an_update(optimizer):
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    with pytest.warns(UserWarning, match="lr_scheduler.step"):
        scheduler.step()


def test_hooks_around_step_are_seen(optimizer):
    def before(*args):
        pass

    def after(*args):
        pass

    assert step_hooks_of(optimizer) == []
    optimizer.register_step_pre_hook(before)
    optimizer.register_step_post_hook(after)
    assert step_hooks_of(optimizer) == [before, after]
