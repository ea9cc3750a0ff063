"""examples/cosmic_tagger.py runs, and PopTorch's words mean what Torchkiln's do."""

import json
import runpy
from pathlib import Path

import pytest

from torchkiln.apps.cosmic import main

EXAMPLE = Path(__file__).parents[2] / "examples" / "cosmic_tagger.py"


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
        "data.num_events=6",
        "data.num_aux_events=3",
        "data.downsample=64",
        "network.n_initial_filters=2",
        "network.network_depth=1",
        "network.blocks_per_layer=1",
        "network.blocks_deepest_layer=1",
        "network.bottleneck_deepest=4",
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
