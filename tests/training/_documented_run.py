"""Runs exactly the program of docs/training.md, kills it, and looks at what it left."""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import torch

from torchkiln import CheckpointStore

PAGE = Path(__file__).parents[2] / "docs" / "training.md"
TIMEOUT_S = 250


def documented_program() -> str:
    (block,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)
    return block


def start(folder: Path) -> subprocess.Popen[str]:
    """Start the program in `folder`, where it finds what an earlier one left."""
    folder.mkdir(exist_ok=True)
    program = folder / "train.py"
    program.write_text(documented_program())
    environment = {**os.environ, "TORCHKILN_BACKEND": "capture", "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [sys.executable, str(program)],
        cwd=folder,
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


def run_to_the_end(folder: Path) -> str:
    """Return what was said on standard error."""
    child = start(folder)
    said = end_of(child)
    assert child.returncode == 0, said
    return said


def end_of(child: subprocess.Popen[str]) -> str:
    """Wait for a program; return what it said on standard error."""
    try:
        return child.communicate(timeout=TIMEOUT_S)[1]
    finally:
        child.kill()


def kill_once(folder: Path, moments: random.Random, training_s: float) -> bool:
    """Kill the program at a random moment after it has begun to save; tell whether it was alive."""
    before = newest(folder)
    child = start(folder)
    begin = time.monotonic()
    while newest(folder) == before and child.poll() is None:
        assert time.monotonic() - begin < TIMEOUT_S
        time.sleep(0.001)
    time.sleep(moments.uniform(0, training_s))
    child.send_signal(signal.SIGKILL)
    said = end_of(child)
    assert child.returncode in (0, -signal.SIGKILL), said
    return child.returncode != 0


def newest(folder: Path) -> str:
    names = [path.name for path in (folder / "runs" / "first" / "checkpoint").glob("*.json")]
    return max(names, default="")


def everything_in(folder: Path) -> dict[str, torch.Tensor]:
    """Return weights, average, optimiser, generators and all losses of a finished run."""
    run = folder / "runs" / "first"
    tensors, facts = CheckpointStore(run / "checkpoint").load()
    assert facts["epoch"] == 20
    series = np.load(run / "results.npz")
    return {**tensors, "loss of every update": torch.from_numpy(series["step_loss"])}


def require_same(folder: Path, expected: dict[str, torch.Tensor]) -> None:
    found = everything_in(folder)
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert torch.equal(found[name], tensor), name
