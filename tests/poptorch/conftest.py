import logging
import os

import pytest
import torch


@pytest.fixture(autouse=True)
def _fast_and_isolated(monkeypatch):
    """Programs are captured, not compiled; neither environment nor log level leaks."""
    for name in list(os.environ):
        if name.startswith(("POPTORCH_", "OMPI_COMM_WORLD_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("TORCHKILN_BACKEND", "capture")
    # Tiny tensors: threads that wait for each other are all that more of them would add.
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    logger = logging.getLogger("poptorch::python")
    level = logger.level
    yield
    logger.setLevel(level)
    torch.set_num_threads(num_threads)
