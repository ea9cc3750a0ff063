from __future__ import annotations

import pathlib
import signal
import subprocess
import sys

import pytest

PROGRAM = """
import os, sys, torch
from torch.utils.data import TensorDataset
from torchkiln.core import Options
from torchkiln.data import DataLoader

class Twice:  # defined in __main__, which another process could not import
    def __len__(self): return 6
    def __getitem__(self, i): return torch.tensor([2 * i])

loader = DataLoader(Options(), Twice(), 2, mode="async", collate_fn=lambda s: torch.cat(s))
iterator = iter(loader)
print(next(iterator).tolist(), *[batch.tolist() for batch in loader], flush=True)
iterator = iter(loader)
print(next(iterator).tolist(), flush=True)
"""


def run_program(text: str, *, as_file: str | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, as_file or "-"]
    if as_file:
        pathlib.Path(as_file).write_text(text)
    # Output is read to its end, which comes when the last process that inherited it is gone.
    return subprocess.run(
        command, input=text, text=True, capture_output=True, timeout=120, check=False
    )


def test_a_program_from_standard_input_needs_no_main_guard_and_exits_in_mid_pass():
    result = run_program(PROGRAM)
    assert result.stdout.splitlines() == ["[0, 2] [0, 2] [4, 6] [8, 10]", "[0, 2]"]
    assert result.returncode == 0
    assert result.stderr == ""


def test_a_program_that_raises_leaves_no_process():
    result = run_program(PROGRAM + "raise SystemExit(5)")
    assert result.returncode == 5
    assert result.stderr == ""


@pytest.mark.parametrize("how", ["SIGKILL", "SIGTERM"])
def test_a_program_that_is_killed_leaves_no_process(how):
    result = run_program(PROGRAM + f"import signal; os.kill(os.getpid(), signal.{how})")
    assert result.returncode == -getattr(signal, how)


def test_a_missing_main_guard_is_named_where_it_matters(tmp_path):
    spawning = """
import torch
from torchkiln.data import AsyncPrefetcher
print(len(list(AsyncPrefetcher([torch.ones(1)], start_method="spawn"))))
"""
    result = run_program(spawning, as_file=str(tmp_path / "unguarded.py"))
    assert result.returncode == 1
    assert "WorkerError" in result.stderr
    assert "must do so under `if __name__ == '__main__':`" in result.stderr
