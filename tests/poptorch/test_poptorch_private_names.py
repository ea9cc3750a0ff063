"""Private names of the original that public programs reach for."""

import torch
from torch import nn

import poptorch
from poptorch._impl import rewrapModelIfNecessary, unwrapModelIfNecessary
from poptorch._poplar_executor import PoplarExecutor


def test_a_wrapped_model_has_an_executable_once_it_is_compiled():
    model = poptorch.inferenceModel(nn.Linear(2, 2))
    assert model._executable is None
    model(torch.ones(1, 2))
    assert model._executable
    model.destroy()
    assert model._executable is None


def test_the_executor_is_found_from_the_model_and_from_the_module_that_it_trains():
    net = nn.Linear(2, 2)
    model = poptorch.trainingModel(net)
    assert net._poplar_executor is model
    assert model._poplar_executor is model
    model.destroy()
    assert not hasattr(net, "_poplar_executor")


def test_the_class_of_executors_is_in_the_module_of_the_original():
    assert PoplarExecutor is poptorch.PoplarExecutor
    assert poptorch._poplar_executor.PoplarExecutor is PoplarExecutor


def test_a_module_that_is_trained_can_be_unwrapped_for_a_while():
    net = nn.Linear(2, 2)
    rewrapModelIfNecessary(net)  # nothing was unwrapped
    model = poptorch.trainingModel(net)
    wrapped = type(net).__name__
    unwrapModelIfNecessary(net)
    unwrapModelIfNecessary(net)
    assert type(net) is nn.Linear
    rewrapModelIfNecessary(net)
    assert type(net).__name__ == wrapped != "Linear"
    unwrapModelIfNecessary(net)
    model.destroy()
    rewrapModelIfNecessary(net)  # nobody trains it any more
    assert type(net) is nn.Linear
