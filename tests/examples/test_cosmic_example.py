"""examples/cosmic_tagger.py runs, and PopTorch's words mean what Torchkiln's do."""

import json
import runpy
from pathlib import Path

import pytest
from launching import torchrun

from torchkiln.apps.cosmic import main

REPOSITORY = Path(__file__).parents[2]
EXAMPLE = REPOSITORY / "examples" / "cosmic_tagger.py"
SMALL = [
    "data.num_events=6",
    "data.num_aux_events=3",
    "data.downsample=64",
    "network.n_initial_filters=2",
    "network.network_depth=1",
    "network.blocks_per_layer=1",
    "network.blocks_deepest_layer=1",
    "network.bottleneck_deepest=4",
]


def test_the_example_trains_to_the_same_bits(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHKILN_BACKEND", "capture")
    args = [
        f"run.output_dir={tmp_path}",
        f"run.cache_dir={tmp_path}/executables",
        "run.compute_mode=IPU",
        "run.backend=capture",
        "run.minibatch_size=1",
        "mode.optimizer.gradient_accumulation=2",
        "mode.optimizer.name=rmsprop",
        *SMALL,
    ]
    monkeypatch.setattr("sys.argv", [str(EXAMPLE), *args, "run.id=example"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(EXAMPLE), run_name="__main__")
    assert ended.value.code == 0
    assert main([*args, "run.id=torchkiln"]) == 0
    example, torchkiln = (
        json.loads((tmp_path / name / "results.json").read_text())
        for name in ("example", "torchkiln")
    )
    assert example["steps"]["loss"] == torchkiln["steps"]["loss"]
    assert len(example["steps"]["loss"]) == 3
    assert example["metrics"] == torchkiln["metrics"]


def test_the_example_trains_with_several_processes(tmp_path):
    """The command of docs/distributed.md, with a network that takes a moment."""
    config = str(REPOSITORY / "configs" / "cosmic_quick.yml")
    folders = [f"run.output_dir={tmp_path}", f"run.cache_dir={tmp_path}/executables"]
    one_update = [*SMALL, "run.backend=capture", "run.minibatch_size=1", "run.epochs=1"]
    outcome = torchrun(EXAMPLE, "--config", config, *folders, *one_update, timeout_s=180).ok()
    assert outcome.stderr.count("2 mini-batches in an update: 2 processes") == 1
    record = json.loads((tmp_path / "cosmic_quick" / "results.json").read_text())
    assert record["world"]["size"] == 2
    assert len(record["steps"]["loss"]) == 3
    assert record["epochs"][0]["images"] == 6
