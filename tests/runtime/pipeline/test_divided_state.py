"""What stages hold comes together as it would be in one process, whoever asked for it."""

from __future__ import annotations

from pathlib import Path

import pytest
from _divided_state import CASES
from launching import torchrun

SCRIPT = Path(__file__).with_name("_divided_state.py")


@pytest.fixture(scope="module")
def told():
    run = torchrun(SCRIPT, *CASES, timeout_s=200, env={"OMP_NUM_THREADS": "1"})
    return run.stdout + run.stderr


@pytest.mark.parametrize("name", CASES)
def test_both_stages_agree_with_plain_pytorch(told, name):
    assert told.count(f"done: {name}") == 2, told
