"""What it takes to open QM9's store and to read it, the first time (with checksums) and later.

    python benchmarks/store.py [--root DIR] [--nodes 2000] [--rounds 5] [--seconds 2] [--limit N]

Full QM9 (130,831 molecules, all attributes) in files that the system has in its memory. Opening:
median of 20. Then each round opens the store anew in this process and reads the first group of
shuffled batches (loaders make up to 8 at once), the whole first epoch, and further epochs for
`--seconds`; figures are medians. One process on one core, processor time, so that other work on the
machine counts less. Writes benchmarks/results/<machine>/store.json.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
import warnings
from pathlib import Path

from _results import machine, result_path, write_result
from _small import parse_arguments

from torchkiln.core._threads import pin_threads

os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:1])
pin_threads(1)


from torchkiln.datasets import write_qm9_root
from torchkiln.graphs import FixedSizeLoader, GraphStore

warnings.filterwarnings("ignore", module="torch")


def opening_ms(directory: Path) -> float:
    times = []
    for _ in range(20):
        begin = time.process_time()
        GraphStore.open(directory)
        times.append(time.process_time() - begin)
    return 1000 * statistics.median(times)


def read(directory: Path, spec: object, seconds: float) -> dict[str, float]:
    """Open a store and read it in random order; return times and the rate afterwards."""
    begin = time.process_time()
    loader = FixedSizeLoader(GraphStore.open(directory), spec, shuffle=True)
    batches = iter(loader)
    ready = time.process_time()
    next(batches)
    first_group = time.process_time()
    for _ in batches:
        pass
    first_epoch = time.process_time()
    count, later = 0, time.process_time()
    while time.process_time() - later < seconds:
        for _ in loader:
            pass
        count += len(loader.store)
    return {
        "loader_ms": 1000 * (ready - begin),
        "first_group_ms": 1000 * (first_group - ready),
        "first_epoch_s": first_epoch - ready,
        "later_graphs_per_second": count / (time.process_time() - later),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--root", type=Path, help="where QM9 is or goes; default: a temporary one")
    parser.add_argument("--nodes", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--json", type=Path, default=result_path("store"))
    parser.add_argument("--limit", type=int, help="write and read only so many molecules of QM9")
    arguments = parse_arguments(parser, nodes=200, rounds=1, seconds=0.01, limit=200)
    from torch_geometric.datasets import QM9

    load_before = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as folder:
        root = write_qm9_root(arguments.root or Path(folder) / "qm9", limit=arguments.limit)
        directory = Path(folder) / "store"
        GraphStore.from_dataset(QM9(str(root))).save(directory)
        spec = FixedSizeLoader(GraphStore.open(directory), num_nodes=arguments.nodes).spec
        read(directory, spec, 0)  # compiles kernels
        opened = opening_ms(directory)
        rounds = [read(directory, spec, arguments.seconds) for _ in range(arguments.rounds)]
        num_bytes = sum(path.stat().st_size for path in directory.iterdir())
    result = {
        "command": f"python benchmarks/store.py --nodes {arguments.nodes} "
        f"--rounds {arguments.rounds} --seconds {arguments.seconds:g}",
        **machine(),
        "load_average_before": load_before,
        "num_bytes": num_bytes,
        "open_ms": opened,
        **{
            key: {
                "median": statistics.median(r[key] for r in rounds),
                "min": min(r[key] for r in rounds),
                "max": max(r[key] for r in rounds),
            }
            for key in rounds[0]
        },
    }
    print(json.dumps(result, indent=2))
    write_result(arguments.json, result)


if __name__ == "__main__":
    main()
