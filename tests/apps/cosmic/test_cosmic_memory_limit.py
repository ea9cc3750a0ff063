"""A network that does not fit into one process trains in two stages, as docs/porting.md tells."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from launching import torchrun

pytestmark = pytest.mark.slow

SCRIPT = Path(__file__).with_name("_limited_cosmic.py")
ROOT = Path(__file__).parents[3]
# What docs/porting.md writes, with fewer events and two images in a micro-batch.
ARGUMENTS = [
    *("--config", str(ROOT / "configs/cosmic_quick.yml"), "run.threads=1", "run.minibatch_size=2"),
    *("run.epochs=1", "data.downsample=4", "data.num_events=12", "data.num_aux_events=1"),
    *("mode.optimizer.gradient_accumulation=3", "mode.num_pictures=0"),
]
STAGES = ["run.pipeline=first,upsamples.3", "run.recompute=auto"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("limited")


def arguments(folder, run, limit=0):
    own = folder / run
    own.mkdir()
    where = [f"run.output_dir={folder}", f"run.cache_dir={folder}/executables", f"run.id=r-{run}"]
    return [str(limit), str(own), *ARGUMENTS, *where]


def alone(folder, run, limit=0):
    command = [sys.executable, str(SCRIPT), *arguments(folder, run, limit)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)
    return done.returncode, done.stdout + done.stderr


def ended(folder, run):
    files = sorted((folder / run).glob("process-*.json"))
    return [json.loads(file.read_text()) for file in files]


def losses(folder, run):
    return json.loads((folder / f"r-{run}" / "results.json").read_text())["epochs"][0]["loss"]


def test_what_one_process_cannot_hold_trains_in_two_stages(folder):
    assert alone(folder, "compiling")[0] == 0
    code, text = alone(folder, "one")
    assert code == 0, text
    (one,) = ended(folder, "one")
    # Compiling needs memory of its own: what counts are runs with executables from the cache.
    torchrun(SCRIPT, *arguments(folder, "compiling-stages"), *STAGES, timeout_s=900).ok()
    torchrun(SCRIPT, *arguments(folder, "free"), *STAGES, timeout_s=900).ok()
    largest = max(stage["peak_bytes"] for stage in ended(folder, "free"))
    # Half way between what a stage needs and what one process needs.
    limit = (one["peak_bytes"] + largest) // 2
    assert largest < limit < one["peak_bytes"]

    code, text = alone(folder, "short", limit)
    assert code == 1, text
    assert "ran out of memory" in text
    assert "two stages in two processes" in text
    torchrun(SCRIPT, *arguments(folder, "stages", limit), *STAGES, timeout_s=900).ok()
    assert [stage["code"] for stage in ended(folder, "stages")] == [0, 0]
    assert losses(folder, "stages") == pytest.approx(losses(folder, "one"), abs=1e-5)
