"""`torchkiln monitor`, `devices`, `gc-monitor` and `gc-info`, from the command line."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from _beacon_processes import SOURCE, running

from torchkiln import cli
from torchkiln.commands._monitor import gc_info, gc_monitor
from torchkiln.core import _beacon_folder


@pytest.fixture(autouse=True)
def _session(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setattr(_beacon_folder, "_SHARED_MEMORY", tmp_path / "shm")
    monkeypatch.setattr(_beacon_folder, "_SESSIONS", tmp_path / "sessions")


def test_once_prints_a_table(capsys):
    with running() as process:
        assert cli.main(["monitor", "--once", "--interval", "0.1"]) == 0
    text = capsys.readouterr().out
    assert str(process.pid) in text
    assert "training step" in text


@pytest.mark.parametrize("command", ["monitor", "top"])
def test_json_is_one_record(capsys, command):
    with running() as process:
        assert cli.main([command, "--once", "--json", "--interval", "0.1"]) == 0
    record = json.loads(capsys.readouterr().out)
    (found,) = record["processes"]
    assert found["pid"] == process.pid
    assert found["programs"][0]["steps"] == 6
    assert found["programs"][0]["executing_share"] is not None


def test_without_a_terminal_it_prints_once(capsys):
    assert cli.main(["monitor"]) == 0
    assert "No program of yours runs on this machine." in capsys.readouterr().out


@pytest.mark.parametrize("interval", ["0", "-1", "1e9"])
def test_an_interval_out_of_range_is_refused(capsys, interval):
    assert cli.main(["monitor", "--once", "--interval", interval]) == 2
    assert "interval must be from 0.1 to 3600 seconds" in capsys.readouterr().err


def test_a_narrow_terminal_has_whole_lines(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    with running() as process:
        assert cli.main(["monitor", "--once", "--interval", "0.1"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 60
    assert str(process.pid) in lines[1]


def test_the_live_screen_ends_with_q():
    """On a terminal: the table appears, and q gives the terminal back as it was."""
    master, terminal = pty.openpty()
    with running() as watched:
        shown = subprocess.Popen(
            [sys.executable, "-m", "torchkiln", "monitor", "--interval", "0.1"],
            stdin=terminal,
            stdout=terminal,
            stderr=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": str(SOURCE), "TERM": "xterm"},
        )
        seen = b""
        while str(watched.pid).encode() not in seen:
            seen += os.read(master, 4096)
        os.write(master, b"q")
        while b"\x1b[?1049l" not in seen:  # back from the other screen
            seen += os.read(master, 4096)
        assert shown.wait(timeout=60) == 0
        assert shown.stderr is not None
        assert shown.stderr.read() == b""
        shown.stderr.close()
    os.close(master)
    os.close(terminal)


def test_nothing_heavy_is_loaded():
    code = (
        "import sys\nfrom torchkiln import cli\n"
        "assert cli.main(['monitor', '--once']) == 0\n"
        "assert cli.main(['devices']) == 0\n"
        "print(*sorted({'torch', 'numba', 'numpy', 'matplotlib'} & set(sys.modules)))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
    )
    assert done.stdout.splitlines()[-1] == ""


def test_devices(capsys):
    assert cli.main(["devices"]) == 0
    assert "instruction sets" in capsys.readouterr().out
    assert cli.main(["devices", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["processor"]["num_threads"] == os.cpu_count()


def test_the_original_names(capsys):
    with running() as process:
        assert gc_monitor([]) == 0
    assert f"{process.pid}" in capsys.readouterr().out
    assert gc_info(["-l"]) == 0
    assert capsys.readouterr().out.startswith("-+- Id: [0]")


def test_the_original_names_are_installed():
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())
    scripts = project["project"]["scripts"]
    assert scripts["gc-monitor"] == "torchkiln.commands._monitor:gc_monitor"
    assert scripts["gc-info"] == "torchkiln.commands._monitor:gc_info"
