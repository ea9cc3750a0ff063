import logging
import os

import pytest


@pytest.fixture(autouse=True)
def _fast_and_isolated(monkeypatch):
    """Programs are captured, not compiled; neither environment nor log level leaks."""
    for name in list(os.environ):
        if name.startswith(("POPTORCH_", "OMPI_COMM_WORLD_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("TORCHKILN_BACKEND", "capture")
    logger = logging.getLogger("poptorch::python")
    level = logger.level
    yield
    logger.setLevel(level)
