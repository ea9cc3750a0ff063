"""One of two ranks of the benchmark is killed, stopped or signalled, for real."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import psutil
import pytest
import torch
from _tiny_files import QUICK, write_molecules
from launching import start_bare, start_torchrun

from torchkiln import CheckpointStore
from torchkiln.apps.schnet import main
from torchkiln.report import load_result

SCRIPT = Path(__file__).with_name("_rank_bench.py")
# Far below the two minutes that a collective waits, on a busy machine, too. Mostly it takes 1 s.
SOON_S = 30.0
PATIENCE_S = 120.0


@pytest.fixture
def flags(tmp_path, monkeypatch):
    """What a run of four epochs of two calls is asked for, in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    root = write_molecules(tmp_path)
    return [
        *QUICK,
        *("--root", str(root), "--num_epochs", "4", "--gradient_accumulation", "1"),
        *("--device_iterations", "3", "--threads", "1", "--checkpoint", "--run_name", "run"),
    ]


def fault(folder, kind, rank):
    return {
        "FAULT_MARK": str(folder / "marker"),
        "FAULT_SIGNAL": kind.name,
        "FAULT_RANK": str(rank),
    }


def saved(folder):
    return CheckpointStore(folder / "checkpoints" / "schnet").load()


def pid_of_fault(folder):
    return int((folder / "marker").read_text())


@pytest.mark.parametrize("victim", [1, pytest.param(0, marks=pytest.mark.slow)])
def test_others_end_soon_without_saving_if_a_rank_is_killed(victim, flags, tmp_path, survived):
    """Loader workers of the dead rank live on for a moment, and must not hold its connections."""
    env = fault(tmp_path, signal.SIGKILL, victim)
    with start_bare(SCRIPT, *flags, "--num_workers", "1", env=env) as running:
        assert running[victim].wait(PATIENCE_S).returncode == -signal.SIGKILL
        killed_s = (tmp_path / "marker").stat().st_mtime
        other = running[1 - victim].wait(PATIENCE_S)
        assert time.time() - killed_s < SOON_S, other.output
    assert other.returncode == 1, other.output
    flat = " ".join(other.stderr.split())
    assert f"rank {victim} (process {pid_of_fault(tmp_path)} on" in flat
    assert "update 13" in flat
    assert "the run ended in epoch 3 of 4, after 12 updates; it can go on from" in flat
    assert saved(tmp_path).facts["epoch"] == 2
    assert not (tmp_path / "runs" / "run" / "results.json").exists()
    survived("rank killed")


def test_torchrun_brings_a_run_back_to_the_same_bits(flags, tmp_path, survived):
    env = fault(tmp_path, signal.SIGKILL, 1)
    more = ["--num_workers", "1", "--model_name", "back"]
    options = ["--max-restarts", "1"]
    with start_torchrun(SCRIPT, *flags, *more, env=env, options=options) as running:
        outcome = running.wait(PATIENCE_S).ok()
    assert "rank 1 (process" in outcome.stderr
    # Not a step further: the SIGTERM that torchrun sends to who is left is no wish to stop.
    assert "continuing checkpoints/back in epoch 3 of 4, after 10 weight updates" in outcome.stderr
    alone = [*flags, "--replication_factor", "2", "--run_name", "alone"]
    before = torch.get_num_threads()
    assert main(alone) == 0
    torch.set_num_threads(before)
    one, two = (load_result(tmp_path / "runs" / name) for name in ("alone", "run"))
    assert two.steps == one.steps
    assert [epoch.validation_mae for epoch in two.epochs] == [
        epoch.validation_mae for epoch in one.epochs
    ]
    assert two.test.predicted.tolist() == one.test.predicted.tolist()
    survived("rank killed, run brought back")


@pytest.mark.slow
def test_a_rank_that_is_stopped_is_named_after_the_time_limit(flags, tmp_path, survived):
    env = fault(tmp_path, signal.SIGSTOP, 1)
    with start_bare(SCRIPT, *flags, "--collective_timeout_s", "3", env=env) as running:
        outcome = running[0].wait(PATIENCE_S)
        waited_s = time.time() - (tmp_path / "marker").stat().st_mtime
        os.kill(running[1].process.pid, signal.SIGKILL)
        running[1].wait(PATIENCE_S)
    assert outcome.returncode == 1, outcome.output
    flat = " ".join(outcome.stderr.split())
    assert f"rank 1 (process {pid_of_fault(tmp_path)} on" in flat
    assert "3 s" in flat
    assert 3 <= waited_s < 3 + SOON_S + 3
    assert saved(tmp_path).facts["epoch"] == 2
    survived("rank stopped")


@pytest.mark.parametrize(
    "kind", [pytest.param(signal.SIGINT, marks=pytest.mark.slow), signal.SIGTERM]
)
def test_a_signal_to_torchrun_lets_all_ranks_save_and_leave(kind, flags, tmp_path, survived):
    """torchrun hands it to the groups of all ranks, with their loader workers."""
    env = {"FAULT_MARK": str(tmp_path / "marker")}
    longer = ["--num_epochs", "5000", "--num_workers", "1"]
    with start_torchrun(SCRIPT, *flags, *longer, env=env) as running:
        running.wait_for(r"epoch +3/5000")
        ranks = ranks_of(running)
        running.process.send_signal(kind)
        outcome = running.wait(PATIENCE_S)
        _, left = psutil.wait_procs(ranks, timeout=10)
    assert not left
    told = outcome.stderr
    assert told.count("of 5000 and saved in checkpoints/schnet; go on with") == 1
    assert told.count("stopping after this step") == 1
    go_on = f"torchrun --standalone --nproc-per-node 2 {SCRIPT} --resume true --model_name schnet"
    assert go_on in told
    result = load_result(tmp_path / "runs" / "run")
    assert result.status == "interrupted"
    # The updates of the report are those of the checkpoint.
    tensors, facts = saved(tmp_path)
    assert facts["step"] == len(tensors["history/losses"])
    assert result.steps[-1][0] < facts["step"] <= result.steps[-1][0] + 2
    survived("signal to all ranks")


_WITH_WORKERS = """
import sys
from pathlib import Path
sys.path.insert(0, {training!r})
from _trainer_ranks import PLAIN, make_trainer, start, torch
from torchkiln.training import exit_code

torch.set_num_threads(1)
options = start().options(PLAIN)
arguments = {{"num_epochs": 100_000, "progress": "lines", "num_workers": 1}}
sys.exit(exit_code(make_trainer(options, Path({folder!r}), **arguments).fit()))
"""


@pytest.mark.slow
def test_a_signal_to_torchrun_spares_the_workers_of_torchs_loader(tmp_path, survived):
    training = str(SCRIPT.parents[1] / "training")
    script = _WITH_WORKERS.format(training=training, folder=str(tmp_path / "run"))
    with start_torchrun(script) as running:
        running.wait_for(r"epoch +3/100000")
        running.process.send_signal(signal.SIGTERM)
        outcome = running.wait(PATIENCE_S)
    assert "of 100000 and saved in" in outcome.stderr, outcome.output
    assert load_result(tmp_path / "run").status == "interrupted"
    survived("signal to all ranks")


@pytest.mark.slow
def test_a_second_interrupt_ends_all_at_once(flags, tmp_path, survived):
    env = {"FAULT_MARK": str(tmp_path / "marker")}
    with start_bare(SCRIPT, *flags, "--num_epochs", "5000", env=env) as running:
        running[0].wait_for(r"epoch +3/5000")
        for _ in range(2):
            for rank in running:
                rank.process.send_signal(signal.SIGINT)
            time.sleep(0.2)  # two at the same moment are one
        begin = time.monotonic()
        codes = {rank.wait(PATIENCE_S).returncode for rank in running}
        assert time.monotonic() - begin < SOON_S
    # Who was left by the other one says that instead.
    assert codes <= {130, 1}
    assert 130 in codes
    assert saved(tmp_path).facts["epoch"] >= 2
    assert not (tmp_path / "runs" / "run" / "report.html").exists()
    survived("signal to all ranks")


def ranks_of(running):
    children = psutil.Process(running.process.pid).children()
    return [child for child in children if str(SCRIPT) in child.cmdline()]
