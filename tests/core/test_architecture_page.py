"""The walks of docs/architecture.md name files that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "architecture.md").read_text()
# Each walk, and where its paths begin.
WALKS = {
    "A program, from call to result": "src/torchkiln/runtime",
    "A façade call, from the original's names to Torchkiln": "src",
    "A batch, from graphs to program": "src/torchkiln",
    "A training run, from settings to report": "src/torchkiln",
}


@pytest.mark.parametrize("heading", WALKS)
def test_every_file_of_a_walk_exists(heading):
    section = PAGE.split(f"## {heading}\n")[1].split("\n## ")[0]
    named = re.findall(r"`([\w/]+/_?\w+\.py)`", section)
    assert len(named) > 5
    for name in named:
        assert (ROOT / WALKS[heading] / name).is_file(), name
