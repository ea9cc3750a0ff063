"""A training that takes a moment: random molecules and a tiny network.

Run as a program it trains with checkpoints and sends itself signals:

    python _tiny_training.py ROOT
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import numpy as np
import torch
from torch import nn

from torchkiln import Options, identity_loss
from torchkiln.apps.schnet._job import TrainingJob, make_checkpoint_plan
from torchkiln.apps.schnet._trainer import train
from torchkiln.datasets import Molecules, make_molecule_set
from torchkiln.graphs import FixedSizeLoader
from torchkiln.report import MonitorGroup, QuietMonitor, make_monitor

CAPTURE = Options(backend="capture", show_progress=False)
SIGNAL_AT = 8  # in the middle of the second epoch
ELEMENTS = np.array([1, 6, 7, 8], dtype=np.uint8)


def make_dataset(num_molecules=60, **arguments):
    random = np.random.default_rng(7)
    sizes = random.integers(2, 7, num_molecules)
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    z = random.choice(ELEMENTS, offsets[-1])
    pos = random.uniform(0, 3, (offsets[-1], 3))
    # Mostly what the elements say, and a little of the geometry.
    energy = np.add.reduceat(10.0 * z + pos[:, 0], offsets[:-1])
    names = [f"random_{i}" for i in range(num_molecules)]
    molecules = Molecules(offsets, z, pos, names, {"energy": energy}, source="random numbers")
    return make_molecule_set(
        molecules,
        **{
            "name": "random",
            "target": "energy",
            "cutoff_angstrom": 3.0,
            "references": "fitted",
            "standardize": True,
            "unit": "eV",
            "progress": False,
            **arguments,
        },
    )


class TinyNetwork(nn.Module):
    """Has dropout, so that random numbers count too."""

    def __init__(self, width=8):
        super().__init__()
        self.embedding = nn.Embedding(10, width)
        self.layer = nn.Linear(width, width)
        self.tied = self.layer
        self.head = nn.Linear(width, 1)
        self.dropout = nn.Dropout(0.2)

    def forward(self, z, edge_index, edge_weight, edge_ways, batch, num_graphs):
        x = self.embedding(z)
        weight = (torch.exp(-edge_weight) * (edge_ways > 0))[:, None]
        source, target = edge_index
        x = x.index_add(0, target, x[source] * weight).index_add(0, source, x[target] * weight)
        x = self.head(self.dropout(torch.tanh(self.tied(self.layer(x)))))
        return x.new_zeros(num_graphs, 1).index_add(0, batch, x)


class TinyRegression(nn.Module):
    """What MoleculeRegression is to SchNet."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, z, edge_index, edge_weight, edge_ways, batch, y, graph_mask):
        num_graphs = graph_mask.shape[0]
        prediction = self.model(z, edge_index, edge_weight, edge_ways, batch, num_graphs)[:, 0]
        error = torch.where(graph_mask, prediction - y.reshape(-1), 0.0)
        loss = error.square().sum() / graph_mask.sum().clamp(min=1)
        return prediction, identity_loss(loss, reduction="mean")


def make_job(dataset=None, *, options=None, num_workers=0, root=None, resume=False, **changes):
    dataset = dataset or make_dataset()
    options = options or Options(backend="eager", show_progress=False)
    torch.manual_seed(3)
    regression = TinyRegression(TinyNetwork())
    rate = changes.pop("learning_rate", 0.01)
    optimizer = torch.optim.Adam(regression.parameters(), lr=rate)
    train_loader = FixedSizeLoader(
        dataset.split("train"),
        batch_size=4,
        options=options,
        shuffle=True,
        seed=5,
        num_workers=num_workers,
    )
    plain = options.replace(device_iterations=1, gradient_accumulation=1, replication_factor=1)
    others = {
        f"{split}_loader": FixedSizeLoader(
            dataset.split(split), train_loader.spec, options=plain, strategy="packed"
        )
        for split in ("validation", "test")
    }
    gamma = changes.pop("gamma", None)
    if gamma is not None:
        changes["scheduler"] = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma)
    plan = None
    if root is not None:
        every = changes.pop("every_epochs", 1)
        plan = make_checkpoint_plan(
            root=Path(root), model_name="tiny", every_epochs=every, resume=resume
        )
    return TrainingJob(
        **{
            "regression": regression,
            "optimizer": optimizer,
            "dataset": dataset,
            "train_loader": train_loader,
            **others,
            "options": options,
            "num_epochs": 3,
            "checkpoint": plan,
            "model_arguments": {"width": 8},
            "settings": {"bench": {"learning_rate": rate}},
            **changes,
        }
    )


class SignalMonitor(QuietMonitor):
    """Sends this process a signal at one step of the run, counted from 0."""

    def __init__(self, kind, at):
        self._kind, self._at, self._count = kind, at, 0

    def step(self, record):
        if self._count == self._at:
            os.kill(os.getpid(), self._kind)
        self._count += 1


def facts_of(result):
    """Return what must not depend on interruptions, times left out."""
    return {
        "steps": result.steps,
        "losses": [record.loss for record in result.epochs],
        "validation": [record.validation_mae for record in result.epochs],
        "molecules": [record.samples for record in result.epochs],
        "rates": [record.learning_rate for record in result.epochs],
        "predicted": result.validation.predicted.tolist(),
        "test": result.test.predicted.tolist(),
    }


def make_full_job(root, **changes):
    """Return a job with everything that a checkpoint has to hold."""
    combined = CAPTURE.replace(device_iterations=2)
    return make_job(root=root, options=combined, ema_decay=0.9, gamma=0.9, **changes)


def main():
    """Train twice under the eyes of the real monitors: one run is interrupted, one killed."""
    root = Path(sys.argv[1])
    torch.set_num_threads(1)
    for name, kind, num_workers in (
        ("interrupted", signal.SIGINT, 0),
        ("killed", signal.SIGKILL, 1),
    ):
        monitor = make_monitor(root)
        job = make_full_job(root / name, num_workers=num_workers)
        try:
            result = train(job, MonitorGroup([SignalMonitor(kind, SIGNAL_AT), *monitor.monitors]))
        finally:
            monitor.close()
        (root / f"{name}.status").write_text(result.status)


if __name__ == "__main__":
    main()
