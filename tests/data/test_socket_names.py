"""Nothing stays in the file system, however processes end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import psutil
import pytest
from prefetch_helpers import is_running, wait_until

PROGRAM = """
import sys, time
import torch
from torch.utils.data import TensorDataset
from torchkiln.core import Options
from torchkiln.data import DataLoader

if __name__ == "__main__":
    kind, data = sys.argv[1], TensorDataset(torch.zeros(4000, 100))
    if kind == "forkserver":
        options = {"mode": "async", "async_options": {"start_method": "forkserver"}}
    else:
        options = {"mode": kind, "num_workers": 2}
    batches = iter(DataLoader(Options(), data, 2, **options))
    for _ in range(4):
        next(batches)
    print("reading", flush=True)
    if sys.argv[2] == "wait":
        time.sleep(100)
"""


@pytest.fixture
def folder():
    """A folder with a short name: the path of a socket has about a hundred characters."""
    with tempfile.TemporaryDirectory(prefix="tk-", dir="/tmp") as name:
        yield Path(name)


def start(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    (folder / "program.py").write_text(PROGRAM)
    temporary = folder / "tmp"
    temporary.mkdir(exist_ok=True)
    process = subprocess.Popen(
        [sys.executable, str(folder / "program.py"), *arguments],
        env={**os.environ, "TMPDIR": str(temporary)},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "reading\n"
    return process


def kill_everything(process: subprocess.Popen[str]) -> None:
    family = [process.pid, *(child.pid for child in psutil.Process(process.pid).children(True))]
    for pid in family:
        os.kill(pid, signal.SIGKILL)
    process.communicate()
    wait_until(lambda: not any(map(is_running, family)))


def shared_memory() -> set[str]:
    return {name for name in os.listdir("/dev/shm") if name.startswith(("torch", "psm", "sem"))}


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_program_with_workers_leaves_nothing_behind_when_all_of_it_is_killed(folder, kind):
    before = shared_memory()
    kill_everything(start(folder, kind, "wait"))
    assert os.listdir(folder / "tmp") == []
    assert shared_memory() <= before


def test_the_folder_of_a_fork_server_is_cleaned_by_the_next_program(folder):
    kill_everything(start(folder, "forkserver", "wait"))
    assert all(name.endswith(".torchkiln-tmp") for name in os.listdir(folder / "tmp"))
    start(folder, "forkserver", "end").communicate()
    assert os.listdir(folder / "tmp") == []
