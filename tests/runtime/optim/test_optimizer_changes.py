"""Optimisers that change between calls: loaded, replaced, edited, with hooks or new groups."""

import pytest
import torch
from _linear_loss import CAPTURE, LinearLoss, batch, plain
from torch import nn

from torchkiln import training_model
from torchkiln.core import OptimizerError


@pytest.mark.parametrize("when", ["before the first call", "after it"])
def test_loading_optimiser_state_brings_its_learning_rate(when):
    module = LinearLoss(plain)
    optimizer = torch.optim.SGD(module.parameters(), lr=1.0)
    stored = torch.optim.SGD(module.parameters(), lr=0.0).state_dict()
    program = training_model(module, CAPTURE, optimizer)
    if when == "after it":
        program(*batch())
    optimizer.load_state_dict(stored)
    before = module.layer.weight.detach().clone()
    program(*batch())
    assert torch.equal(module.layer.weight, before)


def test_numbers_and_structure_are_read_together_when_compiling():
    module, reference = LinearLoss(plain), LinearLoss(plain)
    reference.load_state_dict(module.state_dict())
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    program = training_model(module, CAPTURE, optimizer)
    optimizer.param_groups[0]["momentum"] = 0.9
    eager = torch.optim.SGD(reference.parameters(), lr=0.1, momentum=0.9)
    for _ in range(3):
        program(*batch())
        eager.zero_grad()
        reference(*batch()).backward()
        eager.step()
    torch.testing.assert_close(module.layer.weight, reference.layer.weight)


@pytest.mark.parametrize(
    "hook",
    [
        lambda module, optimizer: module.layer.weight.register_hook(lambda grad: grad * 0),
        lambda module, optimizer: optimizer.register_step_post_hook(lambda *args: None),
    ],
    ids=["gradient", "step"],
)
def test_hooks_that_a_program_does_not_run_are_named(hook):
    module = LinearLoss(plain)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    hook(module, optimizer)
    with pytest.warns(UserWarning, match="does not execute"):
        training_model(module, CAPTURE, optimizer)(*batch())


def test_complex_parameters_are_refused_where_the_maths_differs():
    module = LinearLoss(plain)
    module.phase = nn.Parameter(torch.ones(1, dtype=torch.complex64))
    with pytest.raises(OptimizerError, match="complex"):
        training_model(module, CAPTURE, torch.optim.Adam(module.parameters()))(*batch())


def test_state_that_was_removed_for_one_parameter_starts_afresh():
    module = LinearLoss(plain)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)
    program = training_model(module, CAPTURE, optimizer)
    program(*batch())
    del optimizer.state[module.layer.bias]
    with pytest.raises(OptimizerError, match="step counts"):
        program(*batch())  # one parameter is new, the other is not: compile for that
    program.destroy()
    program(*batch())
    assert len(optimizer.state) == 2


def test_an_optimiser_that_was_replaced_keeps_its_own_state():
    module = LinearLoss(plain)
    first = torch.optim.Adam(module.parameters())
    program = training_model(module, CAPTURE, first)
    program(*batch())
    second = torch.optim.Adam(module.parameters(), lr=0.5)
    program.set_optimizer(second)
    kept = first.state[module.layer.weight]["exp_avg"].clone()
    program(*batch())
    assert torch.equal(first.state[module.layer.weight]["exp_avg"], kept)
    assert not torch.equal(second.state[module.layer.weight]["exp_avg"], kept)


def test_a_group_added_later_is_refused_and_compiled_after_destroy():
    module = LinearLoss(plain)
    optimizer = torch.optim.SGD([module.layer.weight], lr=0.1)
    program = training_model(module, CAPTURE, optimizer)
    program(*batch())
    optimizer.add_param_group({"params": [module.layer.bias], "lr": 0.5})
    with pytest.raises(OptimizerError, match=r"destroy\(\)"):
        program(*batch())
    program.destroy()
    before = module.layer.bias.detach().clone()
    program(*batch())
    assert not torch.equal(module.layer.bias, before)
