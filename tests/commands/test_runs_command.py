import json
import os
import subprocess
import sys
import time

import pytest
from _sample_runs import sample_run

from torchkiln import cli
from torchkiln.commands._runs import find_runs
from torchkiln.core._claims import claimed_folder
from torchkiln.report import RunResult
from torchkiln.report._results_file import save_result

COSMIC = {
    "settings": {"network": {"network_depth": 2}, "data": {"file": None, "num_events": 6}},
    "metrics": {"mean_iou": 0.5},
    "epochs": [
        {
            "epoch": 0,
            "loss": 0.5,
            "seconds": 2.0,
            "images": 6,
            "learning_rate": 0.1,
            "train": {"mean_iou": 0.4},
            "held_out": {"mean_iou": 0.5},
        }
    ],
    "steps": {"loss": [0.6, 0.4]},
}


@pytest.fixture
def runs(tmp_path, monkeypatch):
    """Two finished runs, of CosmicTagger one, one that failed; a minute apart."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("COLUMNS", raising=False)  # a pipe gets whole lines
    folder = tmp_path / "runs"
    save_result(sample_run(num_epochs=3, num_molecules=20), folder / "first")
    save_result(sample_run(num_epochs=2, num_molecules=20), folder / "second")
    save_result(RunResult(status="failed", note="the loss is NaN"), folder / "broken")
    (folder / "cosmic").mkdir()
    (folder / "cosmic/results.json").write_text(json.dumps(COSMIC))
    (folder / "notes").mkdir()
    now = time.time()
    for age, name in enumerate(["cosmic", "second", "broken", "first"]):
        os.utime(folder / name / "results.json", (now - 60 * age,) * 2)
    return folder


def call(capsys, *args):
    code = cli.main(["runs", *args])
    out, err = capsys.readouterr()
    return code, out, err


def test_all_runs_are_listed_newest_first(runs, capsys):
    code, out, _ = call(capsys, "list")
    assert code == 0
    lines = [line.split() for line in out.splitlines() if line.strip()]
    names = [words[0] for words in lines if words[0] in {path.name for path in runs.iterdir()}]
    assert names == ["cosmic", "second", "broken", "first"]
    assert "4 runs in runs" in out
    (second,) = (line for line in out.splitlines() if "second" in line)
    for text in ("QM9", "U0", "SchNet, 455,809", " 2 ", "finished", "meV"):
        assert text in second
    assert "mean IoU 0.500" in out
    assert "failed" in out


def test_the_list_is_there_for_scripts_too(runs, capsys):
    code, out, _ = call(capsys, "list", "--json")
    assert code == 0
    records = {record["name"]: record for record in json.loads(out)}
    assert records["first"]["epochs"] == 3
    assert records["first"]["test_mae"] > 0
    assert records["first"]["molecules_per_s"] > 0
    assert records["cosmic"]["images_per_s"] == 3.0
    assert records["broken"]["status"] == "failed"


def test_damaged_results_are_named_and_do_not_hide_the_others(runs, capsys):
    path = runs / "second/results.json"
    path.write_text(path.read_text().replace('"U0"', '"U1"'))
    _, out, _ = call(capsys, "list")
    assert "damaged" in out
    assert "second: runs/second/results.json is damaged: it does not have its checksum" in out
    assert "first" in out


def test_a_run_that_is_going_on_is_said_to_be(runs, capsys):
    with claimed_folder(runs / "now"):
        (found,) = (run for run in find_runs(runs) if run.path.name == "now")
        assert found.status == "running"
        code, _, err = call(capsys, "show", "now")
    assert code == 2
    answer = "torchkiln runs show: the run 'now' in runs has no results yet; wait for its end\n"
    assert err.startswith(answer)


def test_a_run_is_shown_again(runs, capsys):
    code, out, _ = call(capsys, "show", "first")
    assert code == 0
    assert "Test MAE" in out
    assert "folder: runs/first" in out
    code, out, _ = call(capsys, "show", str(runs / "first"), "--json")
    assert json.loads(out)["status"] == "finished"
    _, out, _ = call(capsys, "show", "cosmic")
    assert "UResNet2D" in out
    assert "Held out mean iou" in out


@pytest.mark.parametrize(
    ("args", "answer"),
    [
        (["show", "frist"], "there is no run 'frist' in runs; did you mean 'first'?"),
        (["show", "zzz"], "there is no run 'zzz' in runs; `torchkiln runs list` shows which"),
        (["show"], "which run? as in `torchkiln runs show NAME`"),
        (["compare", "first"], "comparing needs at least two runs, got 1"),
        (["compare"], "comparing needs at least two runs, got 0"),
        (["compare", "first", "runs/first"], "first, runs/first name a run twice"),
        (["compare", "first", "other"], "there is no run 'other' in runs"),
    ],
)
def test_mistakes_get_one_line(runs, capsys, args, answer):
    code, out, err = call(capsys, *args)
    assert code == 2
    assert err.startswith(f"torchkiln runs {args[0]}: {answer}")
    assert err.endswith(f"\nMore: torchkiln runs {args[0]} --help\n")
    assert err.count("\n") == 2
    assert out == ""


def test_runs_are_compared_in_tables_and_on_a_page(runs, capsys):
    code, out, _ = call(capsys, "compare", "first", "second", "--output", "both.html")
    assert code == 0
    assert "bench.num_epochs" in out
    assert "page: both.html" in out
    assert (runs.parent / "both.html").read_text().startswith("<!DOCTYPE html>")
    call(capsys, "compare", "first", "cosmic")
    assert (runs / "compare.html").is_file()


def test_the_page_is_written_also_if_nobody_reads_the_tables_to_their_end(runs):
    program = "import sys; from torchkiln.cli import main; sys.exit(main(sys.argv[1:]))"
    command = [sys.executable, "-c", program, "runs", "compare", "first", "second"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdout.close()  # as `| head` does
        process.stderr.read()
    assert "</html>" in (runs / "compare.html").read_text()


def test_an_empty_folder_says_how_to_fill_it(tmp_path, capsys):
    code, out, _ = call(capsys, "list", "--output_dir", str(tmp_path))
    assert code == 0
    assert "there are no runs in" in out
    assert call(capsys, "list", "--output_dir", str(tmp_path / "none"), "--json")[1] == "[]\n"


def test_listing_loads_no_torch(runs):
    code = (
        "import sys; from torchkiln.cli import main\n"
        "main(['runs', 'list']); main(['runs', 'show', 'first'])\n"
        "main(['runs', 'compare', 'first', 'second']); main(['models', 'list'])\n"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
