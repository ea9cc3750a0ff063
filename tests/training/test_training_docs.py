"""The program of docs/training.md does what the page says, also if it is killed."""

import random
import re
import signal
import time

import pytest
from _documented_run import (
    PAGE,
    documented_program,
    end_of,
    everything_in,
    kill_once,
    newest,
    require_same,
    run_to_the_end,
    start,
)

from torchkiln import training

# About what the training itself takes, without imports.
TRAINING_S = 1.5


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    folder = tmp_path_factory.mktemp("uninterrupted")
    said = run_to_the_end(folder)
    return folder, said, everything_in(folder)


def test_the_program_is_short():
    lines = [line for line in documented_program().splitlines() if line.strip()]
    own = lines[lines.index("result = Trainer(") :]
    assert len(own) <= 20
    assert len(lines) <= 45


def test_it_leaves_what_the_page_names(uninterrupted):
    folder, said, _ = uninterrupted
    assert re.search(r"epoch 20/20  loss .*validation loss .* samples/s", said)
    run = folder / "runs" / "first"
    for name in ("report.html", "loss.png", "throughput.png", "results.json", "results.npz"):
        assert f"`{name}`" in PAGE.read_text()
        assert (run / name).stat().st_size > 0


def test_public_names_are_explained():
    text = PAGE.read_text()
    for name in training.__all__:
        assert getattr(training, name) is not None
    for name in ("Trainer", "WeightAverage", "exit_code", "StepRecord", "EpochRecord"):
        assert name in text


def test_killed_at_random_moments_it_gives_the_same_bits(uninterrupted, tmp_path):
    moments = random.Random(5)
    kills = sum(kill_once(tmp_path, moments, TRAINING_S / 3) for _ in range(2))
    assert kills, "the program was never killed while it ran"
    run_to_the_end(tmp_path)
    require_same(tmp_path, uninterrupted[2])


@pytest.mark.slow
def test_killed_at_twenty_random_moments_it_gives_the_same_bits(uninterrupted, tmp_path):
    moments = random.Random(17)
    kills, number = 0, 0
    while kills < 20:
        folder = tmp_path / str(number)
        # A run dies up to five times before it may come to its end.
        died = sum(kill_once(folder, moments, TRAINING_S) for _ in range(min(5, 20 - kills)))
        kills, number = kills + died, number + 1
        run_to_the_end(folder)
        require_same(folder, uninterrupted[2])


@pytest.mark.slow
def test_ctrl_c_saves_and_the_same_program_goes_on(uninterrupted, tmp_path):
    child = start(tmp_path)
    while not newest(tmp_path) and child.poll() is None:
        time.sleep(0.001)
    child.send_signal(signal.SIGINT)
    said = end_of(child)
    assert child.returncode == 130, said
    assert "saved in runs/first/checkpoint; go on with the same program" in said
    assert (tmp_path / "runs" / "first" / "report.html").exists()
    assert "continuing runs/first/checkpoint in epoch" in run_to_the_end(tmp_path)
    require_same(tmp_path, uninterrupted[2])
