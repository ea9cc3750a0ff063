"""Who takes part in `layers.py`: PyG eager, and Torchkiln with and without its own aggregation."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from _layers_triplets import TripletLoader
from _layers_workloads import Graphs, make_model, prepare
from _schnet_rounds import Contender
from torch_geometric.loader import DataLoader

from torchkiln import Options, training_model
from torchkiln.datasets._array_cache import data_dir
from torchkiln.graphs import FixedSizeLoader, GraphStore, make_static
from torchkiln.runtime.capture import _capture

LEARNING_RATE = 5e-4
PYG_BATCH_SIZES = (32, 128, 512)
BATCH_SIZE = 128


def make_contenders(model: str, graphs: Graphs, arguments: argparse.Namespace) -> list[Contender]:
    """Return PyG at several batch sizes, then Torchkiln."""
    wanted = arguments.only.split(",") if arguments.only else [""]
    graphs = prepare(model, graphs)
    cache = arguments.cache or data_dir() / "benchmark_executables"
    makers = {
        f"PyG eager ({size})": lambda name, size=size: _pyg(name, model, graphs, size)
        for size in PYG_BATCH_SIZES
    }
    makers["Torchkiln"] = lambda name: _torchkiln(name, model, graphs, cache)
    if arguments.ablation:
        makers["Torchkiln, Inductor's scatter"] = lambda name: _torchkiln(
            name, model, graphs, cache / "without_kernels", kernels=False
        )
    return [make(name) for name, make in makers.items() if any(name.startswith(w) for w in wanted)]


def _pyg(name: str, model: str, graphs: Graphs, batch_size: int) -> Contender:
    module = make_model(model, graphs)
    optimizer = torch.optim.Adam(module.parameters(), lr=LEARNING_RATE)

    def step(batch: Any) -> tuple[int, float]:
        optimizer.zero_grad()
        batch.graph_mask = torch.ones(batch.num_graphs, dtype=torch.bool)
        loss = module(*(batch[key] for key in module.keys))
        loss.backward()
        optimizer.step()
        return batch.num_graphs, loss.item()

    return Contender(name, DataLoader(graphs.graphs, batch_size=batch_size, shuffle=True), step)


def _torchkiln(
    name: str, model: str, graphs: Graphs, cache: Path, *, kernels: bool = True
) -> Contender:
    loader = _fixed_size_loader(graphs)
    module = make_model(model, graphs)
    make_static(module, loader.spec, verbose=False)
    optimizer = torch.optim.Adam(module.parameters(), lr=LEARNING_RATE)
    program = training_model(module, Options(cache_dir=cache, show_progress=False), optimizer)

    def step(batch: Any) -> tuple[int, float]:
        loss = program(*(batch[key] for key in module.keys))
        return int(batch["graph_mask"].sum()), loss.item()

    if not kernels:
        # The key of an executable does not know of this patch: hence a cache of its own.
        with mock.patch.object(_capture, "aggregate_natively", return_value=None):
            step(next(iter(loader)))
    return Contender(name, loader, step)


def _fixed_size_loader(graphs: Graphs) -> FixedSizeLoader | TripletLoader:
    if "triplet_index" in graphs.graphs[0]:
        return TripletLoader(graphs.graphs, batch_size=BATCH_SIZE, shuffle=True)
    store = GraphStore.from_dataset(graphs.graphs, progress=False)
    return FixedSizeLoader(store, batch_size=BATCH_SIZE, shuffle=True)
