"""A whole epoch of QM9 through a compiled GIN: one compile, every molecule once, and how fast.

    python benchmarks/epoch.py [--graphs 128] [--rounds 3] [--limit N]

Trains a 3-layer GIN on the HOMO-LUMO gap. Torchkiln reads packed fixed-size batches from a
`FixedSizeLoader`; PyG reads batches of as many molecules on average from its own `DataLoader` and
trains eagerly. Both shuffle, load and train in one process, on pinned threads. After a full epoch
that counts molecules and compiles, the two take turns on slices of an epoch; the ratio is the
median over the rounds. Needs QM9 (`pip install qm9pack`). Writes
benchmarks/results/<machine>/epoch.json.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import time
from pathlib import Path

from _results import machine, result_path, write_result
from _small import parse_arguments

from torchkiln.core._threads import pin_threads

THREADS = pin_threads()

import torch
from torch import Tensor, nn
from torch_geometric.data import Data
from torch_geometric.data.separate import separate
from torch_geometric.loader import DataLoader
from torch_geometric.nn import GIN, global_add_pool

from torchkiln import Options, identity_loss, training_model
from torchkiln.core._progress import progress_bar
from torchkiln.datasets import qm9_arrays
from torchkiln.datasets.qm9._pyg import collated
from torchkiln.graphs import FixedSizeLoader, GraphStore

HIDDEN = 64
GAP = 4


class GapModel(nn.Module):
    """GIN, sum over atoms, mean squared error over real molecules."""

    def __init__(self) -> None:
        super().__init__()
        self.body = GIN(11, HIDDEN, num_layers=3)
        self.head = nn.Linear(HIDDEN, 1)

    def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor, y: Tensor, graph_mask: Tensor):
        nodes = self.body(x, edge_index)
        graphs = global_add_pool(nodes, batch, size=graph_mask.shape[0])
        error = torch.where(graph_mask, self.head(graphs).squeeze(-1) - y[:, GAP], 0.0)
        loss = error.square().sum() / graph_mask.sum().clamp(min=1)
        return identity_loss(loss, reduction="mean")


def make() -> tuple[GapModel, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = GapModel()
    return model, torch.optim.Adam(model.parameters(), lr=1e-3)


def molecules(limit: int | None) -> list[Data]:
    arrays = qm9_arrays()
    values, slices = collated(arrays if limit is None else arrays.first(limit))
    whole = Data(**values)
    count = len(slices["y"]) - 1
    return [separate(Data, whole, i, slices, decrement=False) for i in range(count)]


def full_epoch(program, loader: FixedSizeLoader, graphs: list[Data]) -> dict:
    """Train on every molecule once; count them by name."""
    seen = torch.zeros(len(graphs), dtype=torch.long)
    losses = []
    numbers = {int(graph.idx): position for position, graph in enumerate(graphs)}
    start = time.perf_counter()
    for batch in progress_bar(loader, desc="One epoch of QM9", unit="batch"):
        losses.append(program(batch.x, batch.edge_index, batch.batch, batch.y, batch.graph_mask))
        real = batch.idx[batch.graph_mask].tolist()
        seen[[numbers[idx] for idx in real]] += 1
    seconds = time.perf_counter() - start
    if not bool((seen == 1).all()):
        raise SystemExit(f"molecules seen other than once: {int((seen != 1).sum())}")
    if program.num_compiles != 1:
        raise SystemExit(f"{program.num_compiles} compiles in one epoch")
    return {
        "molecules": int(seen.sum()),
        "batches": len(losses),
        "compiles": program.num_compiles,
        "seconds": seconds,
        "first_loss": float(losses[0]),
        "last_loss": float(losses[-1]),
        "slots_used": loader.plan.efficiency,
    }


def run_torchkiln(program, loader: FixedSizeLoader, num_batches: int) -> float:
    """Return molecules per second over the next batches, loading included."""
    batches = iter(loader)
    count, start = 0, time.perf_counter()
    for batch in itertools.islice(batches, num_batches):
        program(batch.x, batch.edge_index, batch.batch, batch.y, batch.graph_mask)
        count += int(batch.graph_mask.sum())
    return count / (time.perf_counter() - start)


def run_pyg(model: nn.Module, optimizer, loader: DataLoader, num_batches: int) -> float:
    count, start = 0, time.perf_counter()
    for batch in itertools.islice(loader, num_batches):
        optimizer.zero_grad()
        mask = torch.ones(batch.num_graphs, dtype=torch.bool)
        loss = model(batch.x, batch.edge_index, batch.batch, batch.y, mask)
        loss.backward()
        optimizer.step()
        count += batch.num_graphs
    return count / (time.perf_counter() - start)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--graphs", type=int, default=128, help="molecules in a batch, on average")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--batches", type=int, default=150, help="batches of a round")
    parser.add_argument("--limit", type=int, help="use only the first molecules of QM9")
    parser.add_argument("--json", type=Path, default=result_path("epoch"))
    arguments = parse_arguments(parser, graphs=8, rounds=1, batches=2, limit=100)

    graphs = molecules(arguments.limit)
    store = GraphStore.from_dataset(graphs)
    loader = FixedSizeLoader(store, batch_size=arguments.graphs, shuffle=True)
    print(loader.plan)
    model, optimizer = make()
    program = training_model(model, Options(), optimizer)
    epoch = full_epoch(program, loader, graphs)
    print(
        f"one epoch: {epoch['molecules']:,} molecules, each once, in {epoch['batches']:,} batches, "
        f"{epoch['compiles']} compile, {epoch['seconds']:.1f} s with it"
    )

    pyg_loader = DataLoader(graphs, batch_size=arguments.graphs, shuffle=True)
    eager, eager_optimizer = make()
    rounds = [
        (
            run_pyg(eager, eager_optimizer, pyg_loader, arguments.batches),
            run_torchkiln(program, loader, arguments.batches),
        )
        for _ in progress_bar(range(arguments.rounds), desc="PyG and Torchkiln in turn")
    ]
    ratio = statistics.median(ours / theirs for theirs, ours in rounds)
    pyg, ours = (statistics.median(column) for column in zip(*rounds, strict=True))
    print(f"PyG, eager            {pyg:>10,.0f} molecules/s")
    print(f"Torchkiln, packed     {ours:>10,.0f} molecules/s   {ratio:.2f}x")
    report = {
        **machine(),
        "threads": THREADS,
        "graphs_per_batch": arguments.graphs,
        "spec": str(loader.spec),
        "epoch": epoch,
        "molecules_per_second": {"pyg_eager": pyg, "torchkiln_packed": ours},
        "ratio": ratio,
        "rounds": rounds,
    }
    write_result(arguments.json, report)


if __name__ == "__main__":
    main()
