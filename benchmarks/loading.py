"""Graphs per second into ready batches: PyG's DataLoader against torchkiln's FixedSizeLoader.

    python benchmarks/loading.py [--root DIR] [--nodes 2000] [--rounds 5] [--seconds 2]

All of QM9 (130,831 molecules, all attributes, names included), shuffled, about as many molecules a
batch for everybody. PyG's batches are not padded, which is in its favour. PyG reads a list of
`Data` and an `InMemoryDataset` (which keeps the graphs that it has made); the better one counts.
One process on one core first, all contenders in turn; then other processes on all cores, one
contender after the other. `--rounds` times for `--seconds` each; figures are medians. Prints a
table and writes benchmarks/results/<machine>/loading.json.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path

from _results import machine, result_path, write_result
from _small import parse_arguments

from torchkiln.core._threads import pin_threads

CORES = sorted(os.sched_getaffinity(0))
pin_threads(1)

from torchkiln import Options
from torchkiln.core._progress import progress_bar
from torchkiln.datasets import write_qm9_root
from torchkiln.graphs import FixedSizeLoader, GraphStore

warnings.filterwarnings("ignore", module="torch")
GOAL = 15.0
NUM_WORKERS = 2
COMBINED = Options(gradient_accumulation=8)


def forever(loader: Iterable) -> Iterator:
    while True:
        yield from loader


def graphs_per_second(batches: Iterator, graphs_a_batch: float, seconds: float) -> float:
    """Count batches; they hold `graphs_a_batch` real graphs on average."""
    next(batches)
    begin = time.perf_counter()
    count = 0
    while (elapsed := time.perf_counter() - begin) < seconds:
        next(batches)
        count += 1
    return count * graphs_a_batch / elapsed


def measure(contenders: dict[str, tuple[Iterator, float]], rounds: int, seconds: float) -> dict:
    """Measure everybody in turn, so that a noisy minute hits all of them."""
    for batches, _ in progress_bar(contenders.values(), desc="Warming up"):
        for _ in range(3):
            next(batches)
    rates: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in progress_bar(range(rounds), desc="Measuring"):
        for name, (batches, size) in contenders.items():
            rates[name].append(graphs_per_second(batches, size, seconds))
    return {
        name: {"median": statistics.median(r), "min": min(r), "max": max(r)}
        for name, r in rates.items()
    }


def run(root: Path, num_nodes: int, rounds: int, seconds: float) -> dict:
    from torch_geometric.datasets import QM9
    from torch_geometric.loader import DataLoader

    dataset = QM9(str(root))
    graphs = [dataset[index] for index in progress_bar(range(len(dataset)), desc="List of graphs")]
    in_memory = GraphStore.from_dataset(dataset)
    with tempfile.TemporaryDirectory() as folder:
        mapped = in_memory.save(Path(folder) / "store")
        ours = {
            "torchkiln, in memory": FixedSizeLoader(in_memory, num_nodes=num_nodes, shuffle=True)
        }
        spec = ours["torchkiln, in memory"].spec
        ours["torchkiln, mapped files"] = FixedSizeLoader(mapped, spec, shuffle=True)
        ours["torchkiln, 8 combined"] = FixedSizeLoader(
            mapped, spec, shuffle=True, options=COMBINED
        )
        size = round(len(graphs) / len(ours["torchkiln, in memory"]))
        pyg = {
            "PyG, list": DataLoader(graphs, size, shuffle=True),
            "PyG, InMemoryDataset": DataLoader(dataset, size, shuffle=True),
        }
        alone = {
            **{name: (forever(loader), size) for name, loader in pyg.items()},
            **{name: (forever(loader), len(graphs) / len(loader)) for name, loader in ours.items()},
        }
        os.sched_setaffinity(0, CORES[:1])
        one = measure(alone, rounds, seconds)
        os.sched_setaffinity(0, CORES)

        several = {
            "PyG, list": DataLoader(
                graphs, size, shuffle=True, num_workers=NUM_WORKERS, persistent_workers=True
            ),
            "torchkiln, mapped files": FixedSizeLoader(
                mapped, spec, shuffle=True, num_workers=NUM_WORKERS
            ),
            "torchkiln, 8 combined": FixedSizeLoader(
                mapped, spec, shuffle=True, num_workers=NUM_WORKERS, options=COMBINED
            ),
            "torchkiln, one child ahead": FixedSizeLoader(mapped, spec, shuffle=True, mode="async"),
        }
        # One after the other: processes that nobody reads from still fill their buffers.
        two = {}
        for name, loader in several.items():
            batch = len(graphs) / len(loader)
            two |= measure({name: (forever(loader), batch)}, rounds, seconds)
            if isinstance(loader, FixedSizeLoader):
                loader.terminate()
            else:
                loader._iterator = None
    return {
        "num_graphs": len(graphs),
        "spec": str(spec),
        "graphs_a_batch": size,
        "cores": len(CORES),
        "one_process": one,
        "workers": two,
    }


def report(result: dict) -> None:
    print(
        f"{result['num_graphs']:,} molecules, {result['graphs_a_batch']} a batch, {result['spec']}"
    )
    if result["load_average_before"] > result["cores"] / 2:
        print(
            f"note: other work was running (load average {result['load_average_before']:.1f} on "
            f"{result['cores']} cores)"
        )
    best = max(r["median"] for name, r in result["one_process"].items() if name.startswith("PyG"))
    for title, key in (("one process", "one_process"), (f"{NUM_WORKERS} workers", "workers")):
        print(f"{title:<30} {'graphs/s':>10} {'fewest':>10} {'most':>10} {'x PyG alone':>12}")
        for name, rate in result[key].items():
            print(
                f"  {name:<28} {rate['median']:>10,.0f} {rate['min']:>10,.0f} "
                f"{rate['max']:>10,.0f} {rate['median'] / best:>11.1f}x"
            )
    ratio = result["one_process"]["torchkiln, in memory"]["median"] / best
    print(f"goal {GOAL:.0f}x in one process: {ratio:.1f}x")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--root", type=Path, help="where QM9 is or goes; default: a temporary one")
    parser.add_argument("--nodes", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--json", type=Path, default=result_path("loading"))
    parser.add_argument("--limit", type=int, help="write and read only so many molecules of QM9")
    arguments = parse_arguments(parser, nodes=200, rounds=1, seconds=0.01, limit=200)
    load_before = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as folder:
        root = write_qm9_root(arguments.root or Path(folder), limit=arguments.limit)
        figures = run(root, arguments.nodes, arguments.rounds, arguments.seconds)
    result = {
        "command": f"python benchmarks/loading.py --nodes {arguments.nodes} "
        f"--rounds {arguments.rounds} --seconds {arguments.seconds:g}",
        **machine(),
        "load_average_before": load_before,
        **figures,
    }
    report(result)
    write_result(arguments.json, result)


if __name__ == "__main__":
    main()
