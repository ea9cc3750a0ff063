"""How full fixed-size batches get, and how long planning takes.

    python benchmarks/packing.py [--rounds 5] [--hydronet 4500000]

Data: real QM9 (bonds, and edges between atoms up to 6 and 10 Angstrom apart), sizes like HydroNet's
water clusters (9 to 90 atoms), and heavy-tailed sizes (a few graphs 10 to 50 times the median).
Contenders: the three algorithms of torchkiln.packing; first-fit decreasing (compiled, not
shuffled); PyG's DynamicBatchSampler, which limits nodes only, so that edge slots must hold its
largest batch; and padding every graph to the largest. All are limited to the same node slots; ours
and first-fit decreasing also to the edge and graph slots that `choose_slots` found. A share is
real nodes (edges) over slots, reserved filler counted as waste. Times are medians over shuffled
epochs; compiling is not in them, but in a table of its own. Prints tables and writes
benchmarks/results/<machine>/packing.json.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
from _results import machine, result_path, write_result
from _small import parse_arguments

from torchkiln.core._threads import pin_threads
from torchkiln.packing import ALGORITHMS, PackPlan, choose_slots, pack, split_giants

Sizes = dict[str, np.ndarray]
# DynamicBatchSampler copies the list of graphs for every batch: more would take hours.
PYG_LIMIT = 130_831


def hydronet_like(count: int) -> Sizes:
    """Clusters of 3 to 30 water molecules; the cutoff saturates, so edges grow with atoms."""
    random = np.random.default_rng(0)
    waters = np.clip(np.round(random.normal(20, 6, count)), 3, 30).astype(np.int64)
    nodes = 3 * waters
    reached = random.uniform(0.85, 1.0, count) * np.minimum(nodes - 1, 28)
    return {"nodes": nodes, "edges": (nodes * reached).astype(np.int64) // 2 * 2}


def heavy_tailed(count: int, density: float) -> Sizes:
    """3 in 1,000 graphs have 10 to 50 times the median number of nodes."""
    random = np.random.default_rng(0)
    nodes = np.maximum(random.lognormal(3, 0.4, count), 2).astype(np.int64)
    giants = random.random(count) < 0.003
    nodes[giants] = (20 * random.uniform(10, 50, giants.sum())).astype(np.int64)
    edges = (nodes**density * random.uniform(3, 5, count)).astype(np.int64)
    return {"nodes": nodes, "edges": edges}


def workloads(hydronet: int, limit: int | None) -> dict[str, Callable[[], Sizes]]:
    from torchkiln.datasets import load_sizes

    def qm9(**how: float) -> Sizes:
        return {axis: values[:limit] for axis, values in load_sizes("qm9", **how).items()}

    return {
        "QM9, bonds": lambda: qm9(),
        "QM9, 6 A": lambda: qm9(cutoff_angstrom=6.0),
        "QM9, 10 A": lambda: qm9(cutoff_angstrom=10.0),
        "HydroNet-like": lambda: hydronet_like(hydronet),
        "heavy-tailed": lambda: heavy_tailed(100_000, density=1.0),
        "heavy-tailed, dense giants": lambda: heavy_tailed(100_000, density=1.3),
    }


def timed(work: Callable[[], object], rounds: int) -> tuple[object, float]:
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        result = work()
        times.append(time.perf_counter() - start)
    return result, statistics.median(times)


def of_plan(plan: PackPlan) -> dict:
    return {"batches": len(plan), **plan.efficiency}


def run_ours(sizes: Sizes, slots: dict[str, int], algorithm: str, rounds: int) -> dict:
    epochs = iter(range(rounds))
    plan, seconds = timed(
        lambda: pack(sizes, slots, algorithm=algorithm, seed=0, epoch=next(epochs)), rounds
    )
    return {**of_plan(plan), "seconds": seconds}


def run_split(sizes: Sizes, nodes: int, rounds: int) -> dict:
    ordinary, giants = split_giants(sizes, nodes=nodes, seed=0)
    epochs = iter(range(rounds))
    (ordinary, giants), seconds = timed(
        lambda: split_giants(
            sizes, slots=ordinary.slots, giant_slots=giants.slots, seed=0, epoch=next(epochs)
        ),
        rounds,
    )
    shares = {
        axis: float(column.sum() / sum(len(plan) * plan.slots[axis] for plan in (ordinary, giants)))
        for axis, column in sizes.items()
    }
    parts = {"ordinary": ordinary, "giants": giants}
    return {
        "batches": len(ordinary) + len(giants),
        **shares,
        "seconds": seconds,
        "parts": {name: {**of_plan(plan), "slots": plan.slots} for name, plan in parts.items()},
    }


def run_first_fit(sizes: Sizes, slots: dict[str, int], rounds: int) -> dict:
    from _first_fit import first_fit_decreasing

    count = len(sizes["nodes"])
    table = np.stack([*sizes.values(), np.ones(count, dtype=np.int64)], axis=1)
    limits = np.array(list(slots.values())) - 1
    first_fit_decreasing(table[:2], limits)  # compile
    packs, seconds = timed(lambda: first_fit_decreasing(table, limits), rounds)
    batches = int(packs.max()) + 1
    shares = {axis: float(c.sum() / (batches * slots[axis])) for axis, c in sizes.items()}
    return {"batches": batches, **shares, "seconds": seconds}


def run_pyg(sizes: Sizes, slots: dict[str, int], rounds: int) -> dict:
    import torch
    from torch_geometric.loader import DynamicBatchSampler

    torch.manual_seed(0)
    # The sampler reads num_nodes of every graph; bare numbers spare it from loading graphs.
    count = min(len(sizes["nodes"]), PYG_LIMIT)
    graphs = [SimpleNamespace(num_nodes=n) for n in sizes["nodes"][:count].tolist()]
    sampler = DynamicBatchSampler(graphs, slots["nodes"] - 1, mode="node", shuffle=True)
    # Not list(sampler): that asks for a length, and the sampler raises.
    batches, seconds = timed(lambda: [batch for batch in sampler], rounds)  # noqa: C416
    offsets = np.cumsum([0, *(len(batch) for batch in batches)])
    order = np.concatenate(batches)
    result = {"batches": len(batches), "seconds": seconds, "graphs_planned": count}
    for axis, column in sizes.items():
        used = np.add.reduceat(column[order], offsets[:-1])
        needed = slots["nodes"] if axis == "nodes" else int(used.max()) + 1
        result[axis] = float(used.sum() / (len(batches) * needed))
    return result


def run_padded(sizes: Sizes) -> dict:
    return {axis: float(column.mean() / column.max()) for axis, column in sizes.items()}


def run_workload(sizes: Sizes, nodes: int, rounds: int) -> dict:
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        start = time.perf_counter()
        slots = choose_slots(sizes, nodes=nodes)
        choosing = time.perf_counter() - start
    contenders = {name: run_ours(sizes, slots, name, rounds) for name in ALGORITHMS}
    if said:  # there are giants
        contenders["best_fit, giants apart"] = run_split(sizes, nodes, rounds)
    contenders["first-fit decreasing"] = run_first_fit(sizes, slots, min(rounds, 2))
    contenders["PyG DynamicBatchSampler"] = run_pyg(sizes, slots, min(rounds, 2))
    contenders["padded to the largest"] = run_padded(sizes)
    return {
        "graphs": len(sizes["nodes"]),
        "target_nodes": nodes,
        "slots": slots,
        "choose_slots_seconds": choosing,
        "contenders": contenders,
    }


def compile_seconds() -> dict[str, dict[str, float]]:
    """Return how long the first call of each algorithm takes, compiled or from Numba's cache."""
    code = (
        "import sys, time; import numba; from torchkiln.packing import pack; "
        "start = time.perf_counter(); "
        "pack({'nodes': [3, 4], 'edges': [1, 2]}, {'nodes': 9, 'edges': 5, 'graphs': 4}, "
        "algorithm=sys.argv[1]); print(time.perf_counter() - start)"
    )
    found: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name in ALGORITHMS:
            for state in ("compiled anew", "from Numba's cache"):
                done = subprocess.run(
                    [sys.executable, "-c", code, name],
                    env={**os.environ, "NUMBA_CACHE_DIR": folder},
                    capture_output=True,
                    text=True,
                    check=True,
                )
                found.setdefault(name, {})[state] = float(done.stdout)
    return found


def report(result: dict) -> None:
    from rich.table import Table

    from torchkiln.core._console import make_console

    console = make_console()
    for name, work in result["workloads"].items():
        slots = ", ".join(f"{size:,} {axis}" for axis, size in work["slots"].items())
        table = Table(title=f"{name}: {work['graphs']:,} graphs in batches of {slots}")
        for title in ("contender", "batches", "nodes", "edges", "time", "batches vs best_fit"):
            table.add_column(title, justify="left" if title == "contender" else "right")
        contenders = work["contenders"]
        fewest = contenders["best_fit"]["batches"]
        for contender, row in contenders.items():
            part = row.get("graphs_planned", work["graphs"]) / work["graphs"]
            seconds = f"{row['seconds'] * 1e3:,.0f} ms" if "seconds" in row else ""
            if part < 1:
                seconds += f" for {row['graphs_planned']:,} graphs"
            # Batches of giants are larger, and padded ones several times as large.
            alike = "batches" in row and "parts" not in row
            table.add_row(
                contender,
                f"{row['batches']:,}" if "batches" in row else "",
                f"{row['nodes']:.2%}",
                f"{row['edges']:.2%}",
                seconds,
                f"{row['batches'] / part / fewest:.3f}x" if alike else "",
                style="bold" if contender == "best_fit" else "",
            )
        console.print(table)
    table = Table(title="First call in a process, seconds")
    states = list(next(iter(result["first_call_seconds"].values())))
    for title in ("algorithm", *states):
        table.add_column(title, justify="left" if title == "algorithm" else "right")
    for name, seconds in result["first_call_seconds"].items():
        table.add_row(name, *[f"{seconds[state]:.2f}" for state in states])
    console.print(table)
    console.print(
        f"{result['cpu']}, {result['cores']} cores, NumPy {result['numpy']}, Numba "
        f"{result['numba']}; load average at the start {result['load_average_before']:.1f}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--hydronet", type=int, default=4_500_000, help="graphs like HydroNet's")
    parser.add_argument("--limit", type=int, help="use only the first molecules of QM9")
    parser.add_argument("--json", type=Path, default=result_path("packing"))
    arguments = parse_arguments(parser, rounds=1, hydronet=2000, limit=2000)
    cores = pin_threads()
    import numba

    load = os.getloadavg()[0]
    first_call = compile_seconds()
    small = {"nodes": np.array([3, 4]), "edges": np.array([1, 2])}
    for name in ALGORITHMS:  # so that no time below has compiling in it
        pack(small, {"nodes": 9, "edges": 5, "graphs": 4}, algorithm=name)
    results = {}
    for name, make in workloads(arguments.hydronet, arguments.limit).items():
        sizes = make()
        for nodes in (512,) if name.startswith("heavy") else (512, 2000):
            title = f"{name}, {nodes:,} nodes"
            print(title, file=sys.stderr)
            results[title] = run_workload(sizes, nodes, arguments.rounds)
    result = {
        "command": f"python benchmarks/packing.py --rounds {arguments.rounds} "
        f"--hydronet {arguments.hydronet}",
        **machine(),
        "cores": cores,
        "numpy": np.__version__,
        "numba": numba.__version__,
        "load_average_before": load,
        "first_call_seconds": first_call,
        "workloads": results,
    }
    report(result)
    write_result(arguments.json, result)


if __name__ == "__main__":
    main()
