"""Functions that are called around compilations."""

import pytest
import torch
from torch import nn

import poptorch


@pytest.fixture
def events():
    seen = []
    handles = [
        poptorch.registerPreCompileHook(lambda: seen.append("before")),
        poptorch.registerPostCompileHook(lambda: seen.append("after")),
    ]
    yield seen
    for handle in handles:
        handle.remove()


def test_hooks_run_around_every_compilation(events):
    model = poptorch.inferenceModel(nn.Linear(1, 1))
    model(torch.ones(1, 1))
    model(torch.ones(1, 1))
    assert events == ["before", "after"]


def test_post_hooks_run_after_a_failure_too(events):
    with pytest.raises(poptorch.Error):
        poptorch.trainingModel(nn.Linear(1, 1))(torch.ones(1, 1))
    assert events == ["before", "after"]


def test_removed_hooks_are_silent_and_hooks_must_be_callable():
    seen = []
    poptorch.registerPreCompileHook(lambda: seen.append(1)).remove()
    poptorch.inferenceModel(nn.Linear(1, 1))(torch.ones(1, 1))
    assert seen == []
    with pytest.raises(RuntimeError, match="must be callable"):
        poptorch.registerPostCompileHook(3)
