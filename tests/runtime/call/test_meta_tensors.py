"""Tensors without values are refused wherever a program could meet them."""

from __future__ import annotations

import pytest
import torch
from _misuse import Net, X, Y, compiled, training
from torch import nn

from torchkiln.core import ArgumentError, CaptureError, OptimizerError

NO_VALUES = "meta tensor, which has"


@pytest.mark.parametrize("backend", ["eager", "capture"])
@pytest.mark.parametrize("make", [training, compiled])
def test_an_input(make, backend):
    program = make(backend=backend)
    with pytest.raises(ArgumentError, match=f"y is a {NO_VALUES}"):
        program(X, Y.to("meta"))
    assert program(X, Y)[1].isfinite()


def test_an_input_within_a_structure():
    with pytest.raises(ArgumentError, match=rf"extra\['shift'\] is a {NO_VALUES}"):
        training()(X, Y, extra={"shift": torch.ones(3, device="meta")})


def test_a_module_that_was_never_given_values():
    with torch.device("meta"):
        module = Net()
    with pytest.raises(CaptureError, match=f"'layer.weight' is a {NO_VALUES}.*to_empty"):
        training(module)(X, Y)


@pytest.mark.parametrize("name", ["layer.bias", "count", "plain"])
def test_single_tensors_of_a_module(name):
    module = Net()
    if name == "layer.bias":
        module.layer.bias = nn.Parameter(torch.ones(2, device="meta"))
    else:
        setattr(module, name, torch.ones((), device="meta"))
    with pytest.raises(CaptureError, match=f"'{name}' is a {NO_VALUES}"):
        training(module)(X, Y)


def test_the_state_of_an_optimizer():
    module = Net()
    optimizer = torch.optim.Adam(module.parameters())
    program = compiled(module, optimizer)
    program(X, Y)
    for state in optimizer.state.values():
        state["exp_avg"] = state["exp_avg"].to("meta")
    with pytest.raises(OptimizerError, match=f"exp_avg of 'layer.weight' .* {NO_VALUES}"):
        program(X, Y)
