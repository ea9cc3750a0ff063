"""A step of CosmicTagger larger than the machine: its report takes no memory of that size."""

from __future__ import annotations

import json
import subprocess
import sys

import psutil
import pytest

from torchkiln.profiling import load_profile

# Bytes that a step takes for each event of full resolution, about.
EVENT_BYTES = 13 * 2**30
# Python, torch, code generation and the events themselves.
MOST_RISEN_BYTES = 2 * 2**30

CHILD = """
import json, resource, sys, warnings
import torch
from torchkiln import Options, training_model
from torchkiln.apps.cosmic import read_settings
from torchkiln.apps.cosmic._tagger import TaggerWithLoss, make_tagger

folder, cache, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
settings = read_settings([
    "network.network_depth=3", "network.blocks_per_layer=1", "network.blocks_deepest_layer=1",
    "network.bottleneck_deepest=64",
])
module = TaggerWithLoss(make_tagger(settings), "light").train()
images = torch.zeros(count, 3, 1280, 2048)
labels = torch.zeros_like(images, dtype=torch.uint8)
options = Options(backend="inductor", cache_dir=cache, profile_dir=folder, show_progress=False)
program = training_model(module, options, torch.optim.Adam(module.parameters()))
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    program.compile(images, labels)
told = [str(one.message) for one in caught if "are free" in str(one.message)]
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
print(json.dumps({"told": told, "peak_bytes": peak, "batch_bytes": images.nbytes + labels.nbytes}))
"""


@pytest.mark.slow
@pytest.mark.inductor
def test_a_step_larger_than_the_machine_gets_its_report_and_its_advice(tmp_path):
    machine = psutil.virtual_memory().total
    count = 2 + int(1.5 * machine / EVENT_BYTES)
    folder = tmp_path / "profiles"
    done = subprocess.run(
        [sys.executable, "-c", CHILD, folder, tmp_path / "cache", str(count)],
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    assert result["peak_bytes"] - result["batch_bytes"] < MOST_RISEN_BYTES
    profile = load_profile(folder)
    assert profile.times is None, "nothing ran"
    assert profile.liveness.total_bytes > machine
    assert not profile.liveness.fits
    assert (folder / "training" / "report.html").is_file()
    (told,) = result["told"]
    assert str(folder / "training" / "report.html") in told
    assert profile.liveness.advice[0] in told
    assert "micro-batches of " in told
