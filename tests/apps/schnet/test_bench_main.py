import importlib.util
import io
import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from _tiny_files import QUICK, write_molecules

from torchkiln import cli
from torchkiln.apps.schnet import _experiment
from torchkiln.apps.schnet._main import main
from torchkiln.report import _write
from torchkiln.report._results_file import save_result

REPOSITORY = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return write_molecules(tmp_path_factory.mktemp("molecules"))


@pytest.fixture
def bench(root, tmp_path, monkeypatch):
    """Run the command in an empty folder; return the exit code."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("POPTORCH_CACHE_DIR", str(tmp_path / "cache"))

    def run(*flags):
        return main([*QUICK, "--root", str(root), "--num_epochs", "1", *flags])

    return run


@pytest.fixture
def no_plots(monkeypatch):
    """Drawing takes longer than the training of these tests."""

    def only_results(result, directory):
        return save_result(result, directory)

    monkeypatch.setattr(_write, "write_report", only_results)


def test_a_run_ends_with_a_table_plots_and_a_page(bench, tmp_path, capsys):
    assert bench("--run_name", "mine") == 0
    folder = tmp_path / "runs" / "mine"
    assert {"results.json", "report.html", "loss.png"} <= {path.name for path in folder.iterdir()}
    out = capsys.readouterr()
    assert "Validation MAE" in out.out
    assert "Test MAE" in out.out
    assert str(Path("runs/mine")) in out.err
    assert "epoch 1/1" in out.err


@pytest.mark.usefixtures("no_plots")
def test_json_prints_one_record_and_nothing_else_to_standard_output(bench, capsys):
    assert bench("--json", "--validation", "false", "--loss", "mae") == 0
    record = json.loads(capsys.readouterr().out)
    assert record["status"] == "finished"
    assert record["settings"]["bench"]["loss"] == "mae"
    assert record["validation"] is None
    assert record["dataset"]["sizes"] == {"train": 48, "validation": 6, "test": 6}


@pytest.mark.usefixtures("no_plots")
def test_verbose_tells_the_plan_and_the_options(bench, capsys):
    assert bench("--verbose") == 0
    err = capsys.readouterr().err
    assert "48 graphs in" in err
    assert "gradient_accumulation: 2" in err


@pytest.mark.usefixtures("no_plots")
def test_plain_eager_and_compiled_runs_learn_the_same(bench, capsys):
    losses = {}
    for factor in ("-1", "1"):
        flags = ["--replication_factor", factor, "--filter", "exact", "--backend", "capture"]
        assert bench(*flags, "--json") == 0
        losses[factor] = json.loads(capsys.readouterr().out)["epochs"][0]["loss"]
    assert losses["-1"] == pytest.approx(losses["1"], rel=1e-4)  # float32, other order of sums


@pytest.mark.usefixtures("no_plots")
def test_synthetic_data_and_a_profile(bench, tmp_path, capsys):
    flags = ("--synthetic_data", "--profile_dir", "graph_profile", "--backend", "capture")
    assert bench(*flags, "--json") == 0
    assert json.loads(capsys.readouterr().out)["epochs"][0]["molecules"] > 0
    assert (tmp_path / "graph_profile" / "training" / "report.html").exists()


def test_timing_the_loader_trains_nothing(bench, tmp_path, capsys):
    assert bench("--time_dataloader", "--num_epochs", "2") == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2
    assert all("molecules/s" in line for line in lines)
    assert bench("--time_dataloader", "--json") == 0
    (timing,) = json.loads(capsys.readouterr().out)
    assert timing["molecules"] == 48
    assert timing["molecules_per_s"] == pytest.approx(48 / timing["seconds"])
    assert not (tmp_path / "runs").exists()


@pytest.mark.usefixtures("no_plots")
def test_a_checkpoint_is_neither_overwritten_nor_resumed_unasked(bench, capsys):
    assert bench("--resume") == 1
    assert "no checkpoint of 'schnet'" in capsys.readouterr().err
    assert bench("--checkpoint") == 0
    assert bench("--checkpoint") == 1
    assert "--resume true" in capsys.readouterr().err
    assert bench("--resume", "--num_epochs", "2", "--json") == 0
    epochs = json.loads(capsys.readouterr().out)["epochs"]
    assert [epoch["epoch"] for epoch in epochs] == [0, 1]


@pytest.mark.usefixtures("no_plots")
def test_half_precision_warns_where_the_processor_has_none(bench, monkeypatch):
    # Once in a process; another test may have been first.
    monkeypatch.setattr("torchkiln.runtime.execute._precision._warned", set())
    monkeypatch.setattr(torch.cpu, "get_capabilities", dict)
    with pytest.warns(UserWarning, match="can be hundreds of times slower"):
        bench("--half_precision")


@pytest.mark.usefixtures("no_plots")
def test_a_run_that_diverges_fails_with_the_place(bench, tmp_path, capsys):
    assert bench("--learning_rate", "1e30", "--run_name", "wild", "--num_epochs", "3") == 1
    out = capsys.readouterr()
    assert "FAILED" in out.out
    assert "lower the learning rate" in out.err
    assert json.loads((tmp_path / "runs/wild/results.json").read_text())["status"] == "failed"


@pytest.mark.parametrize(
    ("flags", "code", "message"),
    [
        (["--num_epoch", "1"], 2, "bench.py: unknown flag --num_epoch; did you mean --num_epochs"),
        (["--max_num_atoms", "2"], 2, "max_num_atoms is 2"),
        (["--target", "gab"], 2, "gab"),
        (["--output_dir", "/dev/null"], 2, "choose another --output_dir"),
        (["--profile_dir", "/dev/null"], 2, "choose another --profile_dir"),
        (["--root", "nowhere"], 1, "nowhere"),
    ],
)
def test_mistakes_get_one_line_and_an_exit_code(flags, code, message, bench, capsys):
    assert bench(*flags) == code
    err = capsys.readouterr().err
    assert message in err
    assert "Traceback" not in err


def test_a_report_that_cannot_be_written_does_not_hide_the_figures(bench, monkeypatch, capsys):
    def full(result, directory):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(_write, "write_report", full)
    assert bench("--json") == 1
    out = capsys.readouterr()
    assert json.loads(out.out)["status"] == "finished"
    assert "No space left on device" in out.err
    assert "Traceback" not in out.err


@pytest.mark.usefixtures("no_plots")
def test_runs_of_one_second_do_not_share_a_folder(bench, tmp_path, monkeypatch):
    monkeypatch.setattr(_experiment, "run_name", lambda settings: "same")
    assert bench("--validation", "false") == bench("--validation", "false") == 0
    assert {path.name for path in (tmp_path / "runs").iterdir()} == {"same", "same-2"}


def test_too_little_memory_is_no_traceback(bench, monkeypatch, capsys):
    def allocate(settings):
        raise MemoryError("Unable to allocate 9 EiB")

    monkeypatch.setattr(_experiment, "load_dataset", allocate)
    assert bench() == 1
    assert "Unable to allocate 9 EiB" in capsys.readouterr().err


def test_a_reader_that_leaves_early_costs_nothing(root, tmp_path):
    """As `bench.py --json | head -c 0` and `bench.py 2>&1 | head -1`: both pipes are closed."""
    read_end, write_end = os.pipe()
    os.close(read_end)
    flags = [*QUICK, "--root", str(root), "--num_epochs", "1", "--validation", "false", "--json"]
    command = [sys.executable, str(REPOSITORY / "bench.py"), *flags, "--run_name", "unread"]
    env = {**os.environ, "POPTORCH_CACHE_DIR": str(tmp_path / "cache")}
    with open(tmp_path / "err", "w") as err:
        done = subprocess.run(
            command, cwd=tmp_path, env=env, stdout=write_end, stderr=err, timeout=300, check=False
        )
    assert done.returncode == 1
    assert "BrokenPipeError" not in (tmp_path / "err").read_text()
    assert (tmp_path / "runs/unread/results.json").is_file()
    os.close(write_end)


def test_messages_that_nobody_reads_do_not_end_a_run(monkeypatch):
    class Closed(io.StringIO):
        def write(self, text):
            raise BrokenPipeError

    monkeypatch.setattr(sys, "stderr", Closed())
    _experiment.say("QM9: 48 train")


def test_ctrl_c_before_training_is_no_traceback(bench, monkeypatch, capsys):
    def interrupt(settings):
        raise KeyboardInterrupt

    monkeypatch.setattr(_experiment, "load_dataset", interrupt)
    assert bench() == 130
    assert capsys.readouterr().err == "interrupted\n"


def test_torchkiln_bench_is_the_same_command(root, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["bench", *QUICK, "--root", str(root), "--time_dataloader"]) == 0
    assert "molecules/s" in capsys.readouterr().out
    assert cli.main(["bench", "--num_epoch", "1"]) == 2
    assert "torchkiln bench: unknown flag" in capsys.readouterr().err


def run_command(command, folder):
    """Run a command of the seed in the repository, results into `folder`."""
    program, *args = shlex.split(command)
    assert program == "python3"
    return subprocess.run(
        [sys.executable, *args, "--output_dir", str(folder / "runs")],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=1200,
        check=False,
        env={
            **os.environ,
            "TORCHKILN_BACKEND": "capture",
            "WANDB_MODE": "offline",
            "WANDB_SILENT": "true",
            "POPTORCH_CACHE_DIR": str(folder / "cache"),
        },
    )


def test_the_script_pins_its_threads(root, tmp_path):
    flags = shlex.join([*QUICK, "--root", str(root), "--threads", "1", "--json"])
    done = run_command(f"python3 bench.py --num_epochs 1 {flags}", tmp_path)
    assert done.returncode == 0, done.stderr
    machine = json.loads(done.stdout)["machine"]
    assert machine["threads"] == 1
    assert machine["pinned"] is True


@pytest.mark.slow
@pytest.mark.skipif(
    importlib.util.find_spec("qm9pack") is None, reason="needs qm9pack, the source of QM9"
)
@pytest.mark.parametrize(
    "command",
    [
        "python3 bench.py --config configs/bench_config.yml",
        "python3 bench.py --config configs/bench_config.yml --bench.factory water",
        "python3 bench.py --config configs/qm9_packed.yml",
        "python3 bench.py --config configs/qm9_padded.yml",
        "python3 bench.py --config configs/qm9_packed.yml --use_wandb true",
        "python3 bench.py --config configs/qm9_packed.yml --num_epochs 1 "
        "--profile_dir graph_profile",
    ],
)
def test_the_commands_of_the_seed_run(command, tmp_path):
    command = command.replace("graph_profile", str(tmp_path / "graph_profile"))
    done = run_command(f"{command} --limit 100", tmp_path)
    assert done.returncode == 0, done.stderr
    assert "Throughput" in done.stdout
    (folder,) = (tmp_path / "runs").iterdir()
    assert (folder / "report.html").is_file()
    assert ("--use_wandb true" in command) == bool(list(folder.rglob("*.wandb")))
    assert ("profile" in command) == (tmp_path / "graph_profile").is_dir()
