"""Channels: what a program notes about itself, for whoever listens."""

import pytest
import torch

import poptorch
from torchkiln import core


@pytest.fixture(autouse=True)
def _nothing_native(monkeypatch):
    monkeypatch.setenv("TORCHKILN_BACKEND", "capture")


@pytest.fixture
def spans():
    found = []
    remove = core.add_listener(found.append)
    yield found
    remove()


def test_channels_record_for_listeners():
    class Work:
        def step(self, x):
            return x + 1

        def __getitem__(self, index):
            return 10 * index

    spans = []
    remove = core.add_listener(spans.append)
    try:
        channel = poptorch.profiling.Channel("mine")
        with channel.tracepoint("part"):
            work = channel.instrument(Work(), "step", "__getitem__")
        assert work.step(1) == 2
        assert work[2] == Work()[2] == 20
    finally:
        remove()
    assert {span.channel for span in spans} == {"mine"}
    assert [span.label for span in spans] == ["part", "step", "__getitem__"]


class Double(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.ones(1))

    def forward(self, x):
        return torch.nn.functional.mse_loss(self.scale * x, 2 * x)


def test_what_the_original_instruments_is_recorded(spans):
    options = poptorch.Options()
    options.showCompilationProgressBar(False)
    module = Double()
    optimizer = poptorch.optim.SGD(module.parameters(), lr=0.1)
    model = poptorch.trainingModel(module, options, optimizer)
    model(torch.ones(2))
    model.setOptimizer(optimizer)
    model.copyWeightsToHost()
    model.copyWeightsToDevice()
    model.destroy()
    labels = [s.label for s in spans if s.channel == "poptorch.trainingModel"]
    assert labels == [
        "compile",
        "setOptimizer",
        "copyWeightsToHost",
        "copyWeightsToDevice",
        "destroy",
    ]


def test_an_inference_model_has_a_channel_of_its_own(spans):
    options = poptorch.Options()
    options.showCompilationProgressBar(False)
    model = poptorch.inferenceModel(Double(), options)
    model(torch.ones(2))
    model.destroy()
    labels = [s.label for s in spans if s.channel == "poptorch.inferenceModel"]
    assert labels == ["compile", "destroy"]


def test_access_to_a_dataset_is_recorded(spans):
    data = torch.utils.data.TensorDataset(torch.arange(6.0))
    assert len(list(poptorch.DataLoader(poptorch.Options(), data, batch_size=2))) == 3
    labels = [s.label for s in spans if s.channel == "data"]
    assert labels == ["dataset access", "collate"] * 3


def test_channels_do_nothing_while_nobody_listens():
    channel = poptorch.profiling.Channel("mine")
    assert channel.tracepoint("a") is channel.tracepoint("b")
    assert repr(channel) == "Channel('mine')"
