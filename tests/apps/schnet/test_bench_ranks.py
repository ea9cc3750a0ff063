"""bench.py under torchrun: the figures of one process with as many replicas, and its promises."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from _tiny_files import QUICK, write_molecules
from launching import torchrun

from torchkiln import CheckpointStore
from torchkiln.apps.schnet import main
from torchkiln.apps.schnet._trained import load_trained
from torchkiln.datasets import read_molecules
from torchkiln.report import load_result

SCRIPT = Path(__file__).with_name("_bench_ranks.py")
REPOSITORY = Path(__file__).parents[3]
BENCH = REPOSITORY / "bench.py"
# Accumulation would add gradients in another order than replicas do.
FLAGS = [*QUICK, "--gradient_accumulation", "1", "--num_epochs", "2", "--threads", "1"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder in which two ranks ran the benchmark in all ways; `output.txt` is what they said."""
    path = tmp_path_factory.mktemp("ranks")
    flags = [*FLAGS, "--root", str(write_molecules(path))]
    outcome = torchrun(SCRIPT, str(path), *flags, timeout_s=240)
    (path / "output.txt").write_text(outcome.output)
    outcome.ok()
    return path


@pytest.fixture
def alone(folder, monkeypatch):
    """Runs the benchmark in this process, in that folder."""
    monkeypatch.chdir(folder)
    before = torch.get_num_threads()
    yield lambda *flags: main(list(flags))
    torch.set_num_threads(before)


def codes(folder, name):
    return {json.loads((folder / f"codes-{rank}.json").read_text())[name] for rank in (0, 1)}


def test_figures_are_those_of_as_many_replicas_in_one_process(folder, alone):
    flags = [*FLAGS, "--root", str(folder / "molecules.xyz"), "--replication_factor", "2"]
    assert alone(*flags, "--run_name", "one") == 0
    one, two = (load_result(folder / "runs" / name) for name in ("one", "whole"))
    assert codes(folder, "whole") == {0}
    assert two.steps == one.steps
    for mine, other in zip(two.epochs, one.epochs, strict=True):
        assert (mine.loss, mine.samples) == (other.loss, other.samples)
        assert mine.validation_mae == other.validation_mae
        assert mine.validation_loss == other.validation_loss
    for split in ("validation", "test"):
        mine, other = getattr(two, split), getattr(one, split)
        assert np.array_equal(mine.predicted, other.predicted)
        assert (mine.mae, mine.rmse) == (other.mae, other.rmse)
    assert two.worst == one.worst
    assert two.packing == pytest.approx(one.packing)


def test_results_tell_about_the_processes(folder):
    record = json.loads((folder / "runs" / "whole" / "results.json").read_text())
    world = record["world"]
    assert world["size"] == 2
    assert [rank["rank"] for rank in world["ranks"]] == [0, 1]
    rates = [rank["molecules_per_s"] for rank in world["ranks"]]
    assert world["molecules_per_s"] == pytest.approx(sum(rates))
    assert all(0 < rank["collective_share"] < 1 for rank in world["ranks"])
    # Of the second epoch: all training molecules, in two parts.
    counts = [rank["molecules"] for rank in world["ranks"]]
    assert sum(counts) == record["epochs"][1]["molecules"]
    assert min(counts) > 0
    again = load_result(folder / "runs" / "whole")
    assert again.world.size == 2
    page = (folder / "runs" / "whole" / "report.html").read_text()
    assert "in gradient sums" in page


def test_rank_0_alone_speaks(folder):
    output = (folder / "output.txt").read_text()
    assert output.count("2 processes with 1 replica each: 2 replicas, 2 mini-batches") == 5
    assert output.count("report: runs/whole/report.html") == 2  # and shown again
    assert output.count("  Processes ") == 6
    assert output.count("molecules.xyz: 48 train") == 5


def test_a_signal_to_one_rank_stops_all_after_the_same_step(folder):
    assert codes(folder, "stopped") == {130}
    assert load_result(folder / "runs" / "stopped").status == "interrupted"
    output = (folder / "output.txt").read_text()
    assert output.count("interrupted in epoch 2 of 2 and saved in checkpoints/stopped") >= 1


def test_a_signal_to_one_rank_in_the_validation_stops_all(folder):
    assert codes(folder, "judged") == {130}
    facts = CheckpointStore(folder / "checkpoints" / "judged").load().facts
    # All of the epoch is trained, and it is not done.
    assert (facts["epoch"], facts["loader"]["epoch"], facts["loader"]["done"]) == (0, 1, 0)


def test_models_of_several_ranks_predict_as_others_do(folder):
    trained = load_trained(folder / "checkpoints" / "whole")
    molecules = read_molecules(folder / "molecules.xyz")
    predicted = trained.predict(molecules)
    result = load_result(folder / "runs" / "whole")
    assert result.worst
    by_name = dict(zip(molecules.names, predicted, strict=True))
    for one in result.worst:
        assert by_name[one.name] == pytest.approx(one.predicted, rel=1e-5)


def test_a_resumed_run_has_the_same_bits(folder):
    assert codes(folder, "resumed") == {0}
    (expected, _), (tensors, facts) = (
        CheckpointStore(folder / "checkpoints" / name).load() for name in ("whole", "stopped")
    )
    assert facts["ranks"]["size"] == 2
    assert tensors.keys() == expected.keys()
    for name, tensor in tensors.items():
        # Bits: the losses of updates on filler alone are NaN.
        assert tensor.numpy().tobytes() == expected[name].numpy().tobytes(), name


def test_a_run_that_is_complete_is_shown_again_once(folder):
    assert codes(folder, "complete") == {0}
    output = (folder / "output.txt").read_text()
    assert output.count("checkpoints/whole is complete: 2 epochs done") == 1


def test_nan_at_one_rank_stops_all_and_is_not_saved(folder):
    assert codes(folder, "spoilt") == {1}
    result = load_result(folder / "runs" / "spoilt")
    assert result.status == "failed"
    assert "(rank 1), with the molecules" in result.note
    assert "tiny_" in result.note
    assert "the last good checkpoint is kept" in result.note
    tensors, facts = CheckpointStore(folder / "checkpoints" / "spoilt").load()
    assert facts["epoch"] == 1
    assert all(torch.isfinite(t).all() for name, t in tensors.items() if name.startswith("model/"))


def test_what_several_processes_cannot_do_is_refused_once(folder):
    assert codes(folder, "eager") == {2}
    assert codes(folder, "taken") == {1}
    output = (folder / "output.txt").read_text()
    assert output.count("trains in one process, and 2 were started; give a positive") == 1
    assert output.count("there is a checkpoint of 'whole' already") == 1


def test_loading_is_measured_in_all_processes(folder):
    assert codes(folder, "loading") == {0}
    output = (folder / "output.txt").read_text()
    assert output.count("batches/s") == 2  # one line an epoch


def test_another_number_of_processes_goes_on_with_as_many_mini_batches(folder, alone, recwarn):
    for name in ("fewer", "other"):
        shutil.copytree(folder / "checkpoints" / "stopped", folder / "checkpoints" / name)
    fewer = ["--resume", "--model_name", "fewer", "--num_epochs", "3", "--output_dir", "runs"]
    assert alone(*fewer, "--run_name", "fewer", "--replication_factor", "2") == 0
    assert any("2 processes x 1 replica" in str(told.message) for told in recwarn)
    assert len(load_result(folder / "runs" / "fewer").epochs) == 3


def test_another_number_of_mini_batches_is_refused_with_what_would_work(folder, alone, capsys):
    shutil.copytree(folder / "checkpoints" / "stopped", folder / "checkpoints" / "less")
    less = ["--resume", "--model_name", "less", "--num_epochs", "3", "--run_name", "less"]
    assert alone(*less) == 1
    told = capsys.readouterr().err
    assert "has 2 mini-batches in an update: 2 processes" in told
    assert "with 1 process, replication_factor x gradient_accumulation must be 2" in told
    assert "with the present settings, 2 processes would do" in told


def test_the_documented_command_works_as_it_stands(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    config = str(REPOSITORY / "configs" / "qm9_packed.yml")
    small = [*QUICK, "--limit", "300", "--num_epochs", "1", "--run_name", "qm9"]
    outcome = torchrun(BENCH, "--config", config, *small, timeout_s=180).ok()
    assert "QM9: 240 train, 30 validation, 30 test" in outcome.stderr
    result = load_result(tmp_path / "runs" / "qm9")
    assert result.world.size == 2
    assert result.epochs[0].samples == 240
    assert len(result.test.true) == 30


@pytest.mark.slow
@pytest.mark.parametrize("size", [3, 4])
def test_more_ranks_equal_as_many_replicas(size, folder, alone):
    name = f"of-{size}"
    flags = [*FLAGS, "--root", str(folder / "molecules.xyz"), "--ema_decay", "0.9"]
    several = [*flags, "--run_name", name, "--checkpoint", "--model_name", name]
    torchrun(BENCH, *several, ranks=size, timeout_s=240).ok()
    assert alone(*flags, "--replication_factor", str(size), "--run_name", f"{name}-alone") == 0
    one, two = (load_result(folder / "runs" / run) for run in (f"{name}-alone", name))
    assert two.world.size == size
    assert two.steps == one.steps
    assert [epoch.validation_mae for epoch in two.epochs] == [
        epoch.validation_mae for epoch in one.epochs
    ]
    assert np.array_equal(two.test.predicted, one.test.predicted)
    # Fewer of them go on, if each does more.
    fewer = ["--resume", "--model_name", name, "--num_epochs", "3"]
    outcome = torchrun(BENCH, *fewer, ranks=2, timeout_s=240)
    if size == 3:
        assert outcome.returncode != 0
        assert "start 1 or 3 processes" in outcome.stderr
    else:
        assert outcome.returncode != 0
        assert "with 2 processes, replication_factor x gradient_accumulation must be 2" in (
            outcome.stderr
        )
        torchrun(BENCH, *fewer, "--replication_factor", "2", ranks=2, timeout_s=240).ok()
        assert len(load_result(folder / "runs" / name).epochs) == 3
