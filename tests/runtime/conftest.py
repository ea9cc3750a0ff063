"""Fixtures of the engine's tests."""

from __future__ import annotations

import pytest

from torchkiln.core import Options


@pytest.fixture(params=["eager", "capture"])
def options(request: pytest.FixtureRequest) -> Options:
    """Options for each backend that costs no code generation."""
    return Options(backend=request.param, show_progress=False)
