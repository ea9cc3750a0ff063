"""Every test must leave the process as it found it: no children, no shared memory."""

from __future__ import annotations

import gc
import multiprocessing
import os

import pytest


@pytest.fixture(autouse=True)
def impatient_torch(monkeypatch):
    """torch gives a worker that raised five seconds to leave, in which nothing happens."""
    import torch.utils.data

    monkeypatch.setattr(torch.utils.data._utils, "MP_STATUS_CHECK_INTERVAL", 0.5)


@pytest.fixture(autouse=True)
def no_leftovers():
    before = set(os.listdir("/dev/shm")) if os.path.isdir("/dev/shm") else set()
    yield
    if multiprocessing.active_children():
        gc.collect()  # a failed assertion's traceback may hold a loader in a cycle
    children = multiprocessing.active_children()
    assert not children, f"processes left behind: {children}"
    if os.path.isdir("/dev/shm"):
        # torch's own workers name their segments; only ours are ours to judge.
        left = {name for name in set(os.listdir("/dev/shm")) - before if "torchkiln" in name}
        assert not left, f"shared memory left behind: {left}"
