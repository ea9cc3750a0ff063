"""CosmicTagger in two stages: the figures of one process, checkpoints of the whole network."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from _tiny_events import NETWORK
from launching import torchrun

from torchkiln import CheckpointStore
from torchkiln.apps.cosmic import main

SCRIPT = Path(__file__).with_name("_cosmic_stages.py")
ARGUMENTS = [
    *("run.backend=capture", "run.minibatch_size=1", "run.epochs=2", "run.threads=1"),
    *("run.compute_mode=IPU", "data.num_events=9", "data.num_aux_events=4", "data.downsample=64"),
    *("mode.optimizer.gradient_accumulation=3", *NETWORK),
]
STAGES = "run.pipeline=first,upsamples.0"


def folders(path):
    return [f"run.output_dir={path}", f"run.cache_dir={path}/executables"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("cosmic")
    torchrun(SCRIPT, str(path), *ARGUMENTS, STAGES, *folders(path), timeout_s=240).ok()
    return path


@pytest.fixture
def one_thread():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def codes(folder, name):
    return {json.loads((folder / f"codes-{rank}.json").read_text())[name] for rank in (0, 1)}


def results(folder, run):
    return json.loads((folder / run / "results.json").read_text())


@pytest.mark.usefixtures("one_thread")
def test_figures_are_those_of_one_process(folder):
    assert main([*ARGUMENTS, STAGES, *folders(folder), "run.id=one"]) == 0
    one, two = results(folder, "one"), results(folder, "whole")
    assert codes(folder, "whole") == {0}
    for mine, other in zip(two["epochs"], one["epochs"], strict=True):
        assert mine["loss"] == pytest.approx(other["loss"], abs=1e-5)
        assert mine["images"] == other["images"] == 9
    (ours, _), (theirs, _) = (
        CheckpointStore(folder / run / "checkpoint").load() for run in ("whole", "one")
    )
    assert ours.keys() == theirs.keys()
    for name in ours:
        if name.startswith("model/"):
            torch.testing.assert_close(ours[name], theirs[name], rtol=0, atol=1e-4)


def test_a_run_that_was_stopped_at_one_stage_goes_on_with_the_same_bits(folder):
    assert codes(folder, "stopped") == {130}
    assert codes(folder, "resumed") == {0}
    (expected, _), (tensors, _) = (
        CheckpointStore(folder / run / "checkpoint").load() for run in ("whole", "stopped")
    )
    assert tensors.keys() == expected.keys()
    for name, tensor in tensors.items():
        if "random/" not in name:
            assert torch.equal(tensor, expected[name]), name


def test_two_processes_cannot_run_three_stages(folder):
    assert codes(folder, "three") == {2}
