"""`Trainer` with a module of a user's own, as one of two ranks, again and again in one launch.

    torchrun --nproc-per-node 2 _trainer_ranks.py FOLDER

What each rank found goes to FOLDER/RANK.pt.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import warnings
from pathlib import Path

import torch
from rank_faults import RANK, at_call, at_validation, send
from torch import nn

from torchkiln import DataLoader, Options
from torchkiln.core import DistributedError, OptionsError
from torchkiln.distributed import start
from torchkiln.training import Trainer, WeightAverage

PLAIN = Options(backend="eager", show_progress=False, random_seed=3, device_iterations=2)

# One process draws orders otherwise than several do; dropout and BatchNorm are each rank's own.
FOLDED = {"shuffle": False, "network": {"dropout": 0.0, "norm": False}}


class Network(nn.Module):
    """Has everything that a rank keeps for itself: dropout and buffers that follow its data."""

    def __init__(self, dropout=0.25, norm=True):
        super().__init__()
        self.first = nn.Linear(3, 8)
        self.norm = nn.BatchNorm1d(8) if norm else nn.Identity()
        self.dropout = nn.Dropout(dropout)
        self.last = nn.Linear(8, 1)

    def forward(self, x, y):
        prediction = self.last(self.dropout(torch.tanh(self.norm(self.first(x)))))
        return nn.functional.mse_loss(prediction, y)


def dataset(size, seed):
    x = torch.randn(size, 3, generator=torch.Generator().manual_seed(seed))
    return torch.utils.data.TensorDataset(x, x.prod(dim=1, keepdim=True))


def lists(number):
    """Return so many batches of a user's own making."""
    samples = dataset(6 * number, RANK).tensors
    return [tuple(part[6 * n : 6 * n + 6] for part in samples) for n in range(number)]


def make_trainer(options, folder=None, *, loaders=None, batches=None, **arguments):
    """Return a trainer whose loaders have the same options, or those of `loaders`."""
    torch.manual_seed(1)
    module = arguments.pop("module", None) or Network(**arguments.pop("network", {}))
    reading = {"shuffle": True, "num_workers": 0}
    reading |= {name: arguments.pop(name) for name in reading if name in arguments}
    training = loaders or options
    judging = options.replace(device_iterations=1, replication_factor=1)
    average = WeightAverage(module, 0.8, updates_per_call=options.device_iterations)
    return Trainer(
        module,
        batches or DataLoader(training, dataset(72, 0), batch_size=3, **reading),
        optimizer=torch.optim.Adam(module.parameters(), lr=0.01),
        options=options,
        average=average,
        validation_loader=DataLoader(judging, dataset(24, 1), batch_size=3),
        directory=folder,
        **{"num_epochs": 3, "progress": "none", **arguments},
    )


def figures(result):
    """Return what must not depend on how a run came about."""
    epochs = [(one.loss, one.validation_loss, one.samples) for one in result.epochs]
    return {"steps": result.steps, "epochs": epochs, "status": result.status}


def fit(options, *arguments, **keywords):
    """Return figures and all tensors of this rank."""
    trainer = make_trainer(options, *arguments, **keywords)
    result = trainer.fit()
    state = {name: t.clone() for name, t in trainer.module.state_dict().items()}
    return {**figures(result), "state": state, "world": result.world, "note": result.note}


def warnings_of(trainer):
    """Train, and return the validation losses and what was warned of."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = trainer.fit()
    told = [str(one.message) for one in caught if "processes" in str(one.message)]
    return [epoch.validation_loss for epoch in result.epochs], told


def fit_on_lists(options, *, share):
    """Train on lists of batches; of the held-out ones there is one, for rank 0."""
    torch.manual_seed(1)
    module = Network(dropout=0.0, norm=False)
    batches = list(torch.utils.data.DataLoader(dataset(16, 0), batch_size=4))
    held = list(torch.utils.data.DataLoader(dataset(4, 1), batch_size=4))
    chosen = slice(RANK, None, 2) if share else slice(None)
    return warnings_of(
        Trainer(
            module,
            batches[chosen],
            optimizer=torch.optim.SGD(module.parameters(), lr=0.01),
            options=options.replace(device_iterations=1),
            validation_loader=held[chosen],
            num_epochs=3,
        )
    )


def fit_with_loader_of_one_process(options):
    torch.manual_seed(1)
    module = Network(dropout=0.0, norm=False)
    # torch's own, which does not know how many processes there are.
    loader = torch.utils.data.DataLoader(dataset(24, 0), batch_size=6, shuffle=True)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.01)
    return warnings_of(Trainer(module, loader, optimizer=optimizer, options=options, num_epochs=1))


def error_of(work):
    try:
        work()
    except (DistributedError, OptionsError) as error:
        return f"{type(error).__name__}: {error}"
    return ""


def fit_divided(options, folder):
    """Train with divided optimiser state; a checkpoint of it is continued with and without that."""
    divided = options.replace(shard_optimizer=True)
    found = {"captured": fit(options)}
    with at_call(8, send(signal.SIGTERM), rank=0):
        found["divided, stopped"] = fit(divided, folder / "divided")
    if RANK == 0:  # who alone reads it
        shutil.copytree(folder / "divided", folder / "divided copy")
    found["divided, resumed"] = fit(divided, folder / "divided")
    found["divided, resumed whole"] = fit(options, folder / "divided copy")
    return found


class Diverging(Network):
    """Changes its own weights at one of the ranks."""

    def forward(self, x, y):
        if RANK == 1:
            with torch.no_grad():
                self.first.bias += 1e-3
        return super().forward(x, y)


def run_all(folder):
    options = start().options(PLAIN)
    found = {}
    found["folded"] = fit(options, **FOLDED)
    found["whole"] = fit(options, folder / "whole")
    # SIGTERM at one rank, in the second epoch, in which workers load data.
    with at_call(8, send(signal.SIGTERM), rank=0):
        found["stopped"] = fit(options, folder / "stopped", num_workers=1)
    found["resumed"] = fit(options, folder / "stopped")
    found |= fit_divided(options.replace(backend="capture"), folder)
    # SIGINT at the other one, while both look at the held-out samples.
    with at_validation(1, send(signal.SIGINT), rank=1):
        found["stopped while judging"] = fit(options, folder / "judging")
    found["resumed while judging"] = fit(options, folder / "judging")
    found["alone"] = error_of(lambda: make_trainer(PLAIN))
    found["loader"] = error_of(lambda: make_trainer(options, loaders=PLAIN))
    found["lists"] = error_of(lambda: fit(options, batches=lists(4 + 2 * RANK)))
    found["options"] = error_of(lambda: fit(options.replace(gradient_accumulation=1 + RANK)))
    found["model"] = error_of(lambda: fit(options, network={"norm": RANK == 0}))
    found["few held out"] = fit_on_lists(options, share=True)
    found["undivided"] = fit_on_lists(options, share=False)
    found["undivided loader"] = fit_with_loader_of_one_process(options)
    found["diverged"] = error_of(lambda: fit(options, folder / "lost", module=Diverging()))
    return found


if __name__ == "__main__":
    root = Path(sys.argv[1])
    torch.set_num_threads(1)
    os.chdir(root)
    torch.save(run_all(root), root / f"{RANK}.pt")
