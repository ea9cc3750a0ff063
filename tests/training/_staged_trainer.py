"""`Trainer` with a module that two processes divide into stages, again and again in one launch.

    torchrun --nproc-per-node 2 _staged_trainer.py FOLDER

What each rank found goes to FOLDER/RANK.pt. FOLDER/one holds a run of one process that was stopped.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import torch
from rank_faults import RANK, at_call, send
from torch import nn

from torchkiln import DataLoader, Options
from torchkiln.core import OptionsError
from torchkiln.distributed import start
from torchkiln.training import Trainer, WeightAverage

STAGES = Options(
    backend="capture",
    show_progress=False,
    random_seed=3,
    gradient_accumulation=3,
    pipeline=["first", ["norm", "last"]],
    collective_timeout_s=60.0,
)


class Network(nn.Module):
    """With dropout and buffers in the second stage."""

    def __init__(self, dropout=0.25):
        super().__init__()
        self.first = nn.Linear(3, 8)
        self.dropout_of_first = nn.Dropout(dropout)
        self.norm = nn.BatchNorm1d(8)
        self.dropout = nn.Dropout(dropout)
        self.last = nn.Linear(8, 1)

    def forward(self, x, y):
        h = self.dropout_of_first(torch.tanh(self.first(x)))
        prediction = self.last(self.dropout(torch.tanh(self.norm(h))))
        return nn.functional.mse_loss(prediction, y)


def dataset(size, seed):
    x = torch.randn(size, 3, generator=torch.Generator().manual_seed(seed))
    return torch.utils.data.TensorDataset(x, x.prod(dim=1, keepdim=True))


def make_trainer(options, folder=None, *, dropout=0.25, data=None, **arguments):
    torch.manual_seed(1)
    module = Network(dropout)
    judging = options.replace(gradient_accumulation=1)
    return Trainer(
        module,
        DataLoader(options, data or dataset(72, 0), batch_size=4, shuffle=True),
        optimizer=torch.optim.Adam(module.parameters(), lr=0.01),
        options=options,
        validation_loader=DataLoader(judging, dataset(24, 1), batch_size=4),
        directory=folder,
        **{"num_epochs": 3, "progress": "none", **arguments},
    )


def fit(options, *arguments, **keywords):
    """Return what a run with one thread tells, and all tensors of this rank after it."""
    torch.set_num_threads(1)
    trainer = make_trainer(options, *arguments, **keywords)
    result = trainer.fit()
    return {
        "steps": result.steps,
        "epochs": [(one.loss, one.validation_loss, one.samples) for one in result.epochs],
        "status": result.status,
        "state": {name: t.clone() for name, t in trainer.module.state_dict().items()},
        "optimizer": trainer.optimizer.state_dict()["state"],
        "world": result.world,
        "note": result.note,
    }


def stop_after(number, options, folder, **keywords):
    """Train until a signal comes to rank 0 in a step."""
    with at_call(number, send(signal.SIGTERM), rank=RANK):
        return fit(options, folder, **keywords)


def spoiled():
    data = dataset(72, 0)
    data.tensors[1][40] = float("nan")
    return data


def run_all(folder):
    options = start().options(STAGES)
    plain = {"dropout": 0.0}
    found = {
        "plain": fit(options, folder / "plain", **plain),
        "whole": fit(options, folder / "whole"),
    }
    # SIGTERM at the second stage, in the second epoch.
    with at_call(8, send(signal.SIGTERM), rank=1):
        found["stopped"] = fit(options, folder / "stopped")
    found["resumed"] = fit(options, folder / "stopped")
    with at_call(8, send(signal.SIGTERM), rank=1):
        fit(options, folder / "plain stopped", **plain)
    found["from one"] = fit(options, folder / "one", **plain)
    found["spoiled"] = fit(options, folder / "spoiled", data=spoiled(), **plain)
    module = Network()
    try:
        make_trainer(options, average=WeightAverage(module, 0.9))
    except OptionsError as error:
        found["average"] = str(error)
    return found


if __name__ == "__main__":
    root = Path(sys.argv[1])
    os.chdir(root)
    torch.save(run_all(root), root / f"{RANK}.pt")
