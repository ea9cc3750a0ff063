"""Channels: what a program notes about itself, for whoever listens."""

import poptorch
from torchkiln import core


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
