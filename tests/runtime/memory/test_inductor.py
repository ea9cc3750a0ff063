"""Native code: the plan that is read from Inductor, and what recomputing really saves."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARK = Path(__file__).parents[3] / "benchmarks" / "fit.py"
# What the project promises for programs of more than 1 GB.
TOLERANCE = 0.15


@pytest.mark.slow
@pytest.mark.inductor
@pytest.mark.timeout(1200)
def test_predicted_memory_is_measured_memory_and_recomputing_lowers_it(tmp_path):
    figures = tmp_path / "fit.json"
    command = [sys.executable, str(BENCHMARK), "--cases", "uresnet_640", "--json", str(figures)]
    subprocess.run(command, check=True, timeout=1100)
    cases = json.loads(figures.read_text())["cases"]
    for row in cases.values():
        assert row["num_captures"] == 0
        assert row["predicted_bytes"] == pytest.approx(row["measured_bytes"], rel=TOLERANCE)
    plain, recomputed = cases["uresnet_640/none"], cases["uresnet_640/auto"]
    assert recomputed["measured_bytes"] < 0.8 * plain["measured_bytes"]
    assert recomputed["losses"] == pytest.approx(plain["losses"], rel=1e-4)
