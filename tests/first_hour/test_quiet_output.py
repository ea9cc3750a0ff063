"""What a command tells: results on standard output, on standard error no more than is wanted."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import warnings

import pytest

from torchkiln import cli
from torchkiln.core import warn_user


@pytest.fixture
def molecules(tmp_path, monkeypatch):
    """A folder with molecules, which is the working directory."""
    lines = []
    for number in range(20):
        lines += ["3", f"energy={-76.0 - number / 10}", "O 0 0 0", f"H 0 0 {0.9 + number / 100}"]
        lines += [f"H 0 {0.9 + number / 90} 0"]
    (tmp_path / "water.extxyz").write_text("\n".join(lines) + "\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("POPTORCH_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path


def bench(*flags: str) -> int:
    tiny = ["--backend", "eager", "--num_features", "4", "--num_interactions", "1"]
    where = ["--root", "water.extxyz", "--target", "energy", "--num_epochs", "1"]
    return cli.main(["bench", *tiny, *where, "--batch_size", "2", *flags])


def test_quiet_leaves_the_results_alone(molecules, capsys):
    assert bench("--quiet", "--json") == 0
    shown = capsys.readouterr()
    assert json.loads(shown.out)["status"] == "finished"
    assert shown.err == ""


def test_a_log_file_has_lines_instead_of_bars(molecules, capsys):
    assert bench("--json") == 0
    err = capsys.readouterr().err
    assert "epoch 1/1" in err
    assert "\r" not in err


def test_a_warning_is_one_line_without_the_source():
    # In a process of its own: pytest takes warnings before they are shown.
    code = (
        "from torchkiln.core import warn_user\n"
        "from torchkiln.training._exit_codes import run_command\n"
        "run_command(lambda: warn_user('the cache is full;\\n  nothing is kept') or 0, 'x', '')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr == "warning: the cache is full; nothing is kept\n"


def test_the_log_level_decides_about_warnings(capsys):
    from torchkiln.apps._command_line import speaking

    with warnings.catch_warnings():
        warnings.simplefilter("always")
        with speaking(quiet=False, log_level="error"):
            warn_user("nobody wants to know")
    assert capsys.readouterr().err == ""


def test_doctor_prints_one_record_for_programs(capsys):
    assert cli.main(["doctor", "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    found = {entry["what"]: entry["text"] for entry in record["findings"]["Versions"]}
    assert found["torchkiln"] == record["version"]
    assert all(isinstance(remedy, str) for remedy in record["remedies"])


def test_python_m_torchkiln_is_the_command():
    done = subprocess.run(
        [sys.executable, "-m", "torchkiln", "--version"],
        capture_output=True,
        text=True,
        env=dict(os.environ),
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("torchkiln 0.")


@pytest.mark.parametrize("columns", [60, 80, 120, 200])
@pytest.mark.parametrize(
    "command",
    ["", "bench", "bench cosmic", "bench steps", "cache list", "data", "doctor", "fit", "predict"],
)
def test_help_fits_into_the_terminal(command, columns, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(columns))
    with contextlib.suppress(SystemExit):
        cli.main([*command.split(), "--help"])
    text = capsys.readouterr().out
    assert "exit codes:" in text
    assert "typing." not in text
    assert "Literal" not in text
    # Commands that may be copied stay on one line.
    prose = [line for line in text.splitlines() if f" torchkiln {command}".rstrip() not in line]
    assert max(map(len, prose)) <= min(columns, 110)


@pytest.mark.parametrize("columns", [60, 80, 120, 200])
def test_tables_fit_into_the_terminal(columns, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("TORCHKILN_DATA_DIR", str(tmp_path))
    (tmp_path / "sizes.csv").write_text("nodes,edges\n3,4\n5,8\n9,10\n")
    assert cli.main(["plan", "--sizes", str(tmp_path / "sizes.csv"), "--nodes", "20"]) == 0
    assert cli.main(["data", "list"]) == 0
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= columns
    for whole in ("algorithm", "batches", "best_fit", "fashion_mnist"):
        assert whole in out
