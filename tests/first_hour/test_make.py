"""`make bench` installs what a run needs, `make test` the rest; a second call installs nothing."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

MAKEFILE = Path(__file__).parents[2] / "Makefile"
# Stands for the Python of the virtual environment, and writes down what it is asked for.
RECORDER = '#!/bin/sh\necho "$@" >> calls.txt\n'

pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")


@pytest.fixture
def make(tmp_path):
    """Run make in a copy of the repository that holds no code; return the calls of Python."""
    shutil.copy(MAKEFILE, tmp_path)
    (tmp_path / "pyproject.toml").touch()
    python = tmp_path / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(RECORDER)
    python.chmod(0o755)

    def run(target: str) -> list[str]:
        (tmp_path / "calls.txt").write_text("")
        subprocess.run(["make", target], cwd=tmp_path, check=True, capture_output=True)
        return (tmp_path / "calls.txt").read_text().splitlines()

    run.folder = tmp_path
    return run


PIP = "-m pip install --quiet --disable-pip-version-check -e"
BENCH = "bench.py --config configs/qm9_quick.yml"


def test_a_run_installs_what_it_needs_and_only_once(make):
    assert make("bench") == [f"{PIP} .[qm9]", BENCH]
    assert make("bench") == [BENCH]


def test_development_installs_the_rest_and_only_once(make):
    make("bench")
    assert make("install") == [f"{PIP} .[dev]"]
    assert make("install") == []
    assert make("bench") == [BENCH]


def test_other_requirements_are_installed_again(make):
    make("install")
    later = (make.folder / ".venv" / ".installed-dev").stat().st_mtime + 10
    os.utime(make.folder / "pyproject.toml", (later, later))
    assert make("bench")[0] == f"{PIP} .[qm9]"
