"""CosmicTagger under torchrun: the figures of one process that accumulates as many mini-batches."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from _tiny_events import NETWORK
from launching import torchrun

from torchkiln import CheckpointStore
from torchkiln.apps.cosmic import main

SCRIPT = Path(__file__).with_name("_cosmic_ranks.py")
ARGUMENTS = [
    *("run.backend=capture", "run.minibatch_size=2", "run.epochs=2", "run.threads=1"),
    *("run.compute_mode=IPU", "data.num_events=14", "data.num_aux_events=5", "data.downsample=64"),
    *NETWORK,
]


def folders(path):
    return [f"run.output_dir={path}", f"run.cache_dir={path}/executables"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("cosmic")
    outcome = torchrun(SCRIPT, str(path), *ARGUMENTS, *folders(path), timeout_s=240)
    (path / "output.txt").write_text(outcome.output)
    outcome.ok()
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
def test_figures_are_those_of_one_process_that_accumulates(folder):
    more = ["run.id=one", "mode.optimizer.gradient_accumulation=2", "network.batch_norm=false"]
    assert main([*ARGUMENTS, *folders(folder), *more]) == 0
    one, two = results(folder, "one"), results(folder, "exact")
    assert codes(folder, "exact") == {0}
    assert two["metrics"] == one["metrics"]
    assert two["steps"] == one["steps"]
    timed = ("seconds", "images_per_s")
    for mine, other in zip(two["epochs"], one["epochs"], strict=True):
        for name in mine.keys() - timed:
            assert mine[name] == other[name], name
    assert two["epochs"][0]["images"] == 12
    assert "world" not in one
    assert [rank["images"] for rank in two["world"]["ranks"]] == [6, 6]
    for picture in ("event_0.png", "event_1.png"):
        pictures = [(folder / run / picture).read_bytes() for run in ("one", "exact")]
        assert pictures[0] == pictures[1]


def test_a_run_that_was_stopped_at_one_rank_goes_on_with_the_same_bits(folder):
    assert codes(folder, "stopped") == {130}
    assert codes(folder, "resumed") == {0}
    (expected, _), (tensors, _) = (
        CheckpointStore(folder / run / "checkpoint").load() for run in ("whole", "stopped")
    )
    assert tensors.keys() == expected.keys()
    assert any(name.startswith("ranks/1/buffers/") for name in tensors)
    for name, tensor in tensors.items():
        # Loaders draw a number for each pass, and nothing else draws any.
        if "random/" not in name:
            assert torch.equal(tensor, expected[name]), name


def test_other_modes_divide_their_work(folder):
    assert codes(folder, "inference") == codes(folder, "iotest") == {0}
    judged = json.loads((folder / "whole" / "inference.json").read_text())
    assert judged["metrics"] == results(folder, "whole")["metrics"]
    output = (folder / "output.txt").read_text()
    assert output.count("read 12 images in") == 1


def test_plain_pytorch_is_refused_once_with_the_remedy(folder):
    assert codes(folder, "plain") == {2}
    output = (folder / "output.txt").read_text()
    assert output.count("and 2 were started; use run.compute_mode=IPU") == 1
    assert output.count("2 mini-batches in an update: 2 processes") == 4
