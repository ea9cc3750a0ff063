"""Trainings with checkpoints that somebody else kills: python _killed_training.py.

For every folder on standard input, a copy of this process trains there, resuming whatever is there
as a person would after a power cut. Standard output says, line by line: "training PID"; then, if it
comes so far, a digest of everything that was computed; then "exit CODE CALLS", with the number of
calls of the program that came to their end. This process trains once before it begins, because
imports and first calls take longer than all the rest, and copies need not do them again.
"""

from __future__ import annotations

import hashlib
import json
import mmap
import os
import struct
import sys
import tempfile
import traceback
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "apps" / "schnet"))

import torch
from _tiny_training import facts_of, make_dataset, make_job

from torchkiln import CheckpointStore, Options
from torchkiln.apps.schnet._trainer import train
from torchkiln.training._notes import StepResult
from torchkiln.training._steps import ProgramStep

NUM_EPOCHS = 8
OPTIONS = Options(backend="eager", show_progress=False, device_iterations=2)
DATASET = make_dataset()


# Shared with the copies, which tell of themselves what they cannot tell when they are killed.
_CALLS = mmap.mmap(-1, 8)


def calls() -> int:
    return int(struct.unpack("q", _CALLS[:])[0])


def count_calls() -> None:
    usual = ProgramStep.__call__

    def counted(self: ProgramStep, *arguments: Any) -> StepResult:
        result = usual(self, *arguments)
        _CALLS[:] = struct.pack("q", calls() + 1)
        return result

    ProgramStep.__call__ = counted


def run(root: Path) -> str:
    """Train to the end and return a digest of all losses, errors, predictions and weights."""
    resumes = CheckpointStore(root / "tiny").exists()
    # An average, a schedule and dropout: all that a checkpoint has to hold.
    everything = {"ema_decay": 0.9, "gamma": 0.9, "num_epochs": NUM_EPOCHS}
    job = make_job(DATASET, root=root, resume=resumes, options=OPTIONS, **everything)
    result = train(job)
    assert result.status == "finished", result.note
    digest = hashlib.sha256(json.dumps(facts_of(result)).encode())
    for name, tensor in job.regression.state_dict().items():
        digest.update(name.encode() + tensor.numpy().tobytes())
    return digest.hexdigest()


def run_copy(root: Path) -> int:
    try:
        print(f"training {os.getpid()}", flush=True)
        print(run(root), flush=True)
        return 0
    except BaseException:
        traceback.print_exc()
        return 1


def main() -> None:
    torch.set_num_threads(1)
    count_calls()
    with tempfile.TemporaryDirectory() as folder:
        run(Path(folder))
    for line in sys.stdin:
        _CALLS[:] = bytes(8)
        pid = os.fork()
        if pid == 0:
            os._exit(run_copy(Path(line.strip())))
        _, status = os.waitpid(pid, 0)
        print(f"exit {os.waitstatus_to_exitcode(status)} {calls()}", flush=True)


if __name__ == "__main__":
    main()
