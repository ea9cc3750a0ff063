"""Molecules per second of several ranks on one machine, against one rank, and against PyG with DDP.

    python benchmarks/distributed.py [--models A,B] [--filter exact|table] [--ranks 2] [--rounds 5]

Everybody trains SchNet on the same molecules of QM9 and loads batches live, in its own process. A
rank has one thread on a core of its own. After a warm-up the contenders take turns, some seconds
each; figures are medians over the rounds, ratios are formed round by round. "2 replicas" makes
updates of as many molecules as two ranks do, so it is what two ranks are measured against.

PyG trains with DistributedDataParallel and gets the best of three batch sizes on each rank, as it
is and "flushed", with denormal numbers taken for zero.

From the step's time and the size of the gradients a formula (`_distributed_scaling.py`) says what
more ranks would reach on three networks. One point of it is simulated: ranks whose sums of
gradients are delayed by what the formula says.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from pathlib import Path
from typing import Any

from _distributed_contenders import RanksContender, Setup
from _distributed_scaling import GIGABIT, LATENCY_S, NETWORKS, RANKS, Update, scaling_table
from _results import machine, result_path, write_result
from _small import parse_arguments

# The point that is simulated: so many ranks on the slowest network.
SIMULATED_RANKS = 16


def read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", default="A,B", help="A: 128/6/50, 10 A; B: 100/4/25, 6 A, k=28")
    parser.add_argument("--filter", choices=("exact", "table"), default="exact", help="of SchNet")
    parser.add_argument("--ranks", type=int, default=2, help="each needs a core")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=3.0, help="of each contender in a round")
    parser.add_argument("--limit", type=int, default=12_000, help="molecules")
    parser.add_argument("--num_nodes", type=int, default=2_320, help="of a pack")
    parser.add_argument(
        "--pyg", default="32,128,512", help="batch sizes of PyG on each rank; empty: without PyG"
    )
    parser.add_argument("--cache", type=Path, help="directory of executables kept between runs")
    parser.add_argument("--json", type=Path, help="default: named after the filter")
    arguments = parse_arguments(
        parser, models="B", rounds=1, seconds=0.01, limit=60, num_nodes=200, pyg="8"
    )
    if arguments.json is None:
        suffix = "" if arguments.filter == "exact" else f"_{arguments.filter}"
        arguments.json = result_path(f"distributed{suffix}")
    return arguments


def main() -> None:
    arguments = read_arguments()
    record: dict[str, Any] = {}
    for model in arguments.models.split(","):
        record[model] = measure(model, arguments)
        print_model(model, record[model], arguments.ranks)
    settings = {
        key: value for key, value in vars(arguments).items() if key not in ("json", "cache")
    }
    write_result(arguments.json, {"machine": machine(), "settings": settings, "models": record})
    print(f"\nwritten: {arguments.json}")


def measure(model: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the figures of all contenders with one model."""
    from _schnet_contenders import MODELS, Workload
    from _schnet_rounds import run_rounds

    from torchkiln.datasets._array_cache import data_dir
    from torchkiln.models import SchNet

    if model not in MODELS:
        raise SystemExit(f"no model {model!r}; choose from {', '.join(MODELS)}")
    common = {
        "model": model,
        "filter": arguments.filter,
        "limit": arguments.limit,
        "num_nodes": arguments.num_nodes,
        "cache": str(arguments.cache or data_dir() / "benchmark_executables"),
    }
    weights = list(SchNet(**MODELS[model].arguments).parameters())
    gradient_bytes = sum(weight.numel() * weight.element_size() for weight in weights)
    with tempfile.TemporaryDirectory(prefix="torchkiln-distributed-") as folder:
        files: dict[str, Path] = {}
        if arguments.pyg:
            import torch

            workload = Workload.load(MODELS[model], arguments.limit, arguments.num_nodes)
            files["workload.pt"] = Path(folder) / "workload.pt"
            torch.save((workload.directed, workload.weights), files["workload.pt"])
        setups = make_setups(arguments, gradient_bytes)
        contenders = [RanksContender(name, s, common, files) for name, s in setups.items()]
        try:
            outcomes = run_rounds(contenders, arguments.rounds, arguments.seconds, f"model {model}")
        finally:
            for contender in contenders:
                contender.close()
    figures = {
        outcome.name: {
            "molecules_per_s": statistics.median(outcome.rates),
            "loading_share": statistics.median(contender.shares.loading[2:]),
            "collective_share": statistics.median(contender.shares.collective[2:]),
            "step_s": statistics.median(contender.shares.step_s[2:]),
            "losses": [outcome.curve.losses[0], outcome.curve.losses[-1]],
            "rounds": outcome.rates,
        }
        for outcome, contender in zip(outcomes, contenders, strict=True)
    }
    return {
        "gradient_bytes": gradient_bytes,
        "contenders": figures,
        "ratios": make_ratios(figures, arguments.ranks),
        "scaling": make_scaling(figures, gradient_bytes, arguments.ranks),
    }


def make_setups(arguments: argparse.Namespace, gradient_bytes: int) -> dict[str, Setup]:
    """Return who takes part, by name."""
    ranks = arguments.ranks
    wire = Update(1.0, gradient_bytes).collective_s(SIMULATED_RANKS, GIGABIT)
    setups = {
        ONE: Setup("torchkiln", 1, 1),
        many_threads(ranks): Setup("torchkiln", 1, ranks),
        folded(ranks): Setup("torchkiln", 1, ranks, replicas=ranks),
        many_ranks(ranks): Setup("torchkiln", ranks, 1),
        delayed(ranks): Setup("torchkiln", ranks, 1, delay_s=wire),
    }
    for flushed in (False, True):
        for size in filter(None, arguments.pyg.split(",")):
            word = " flushed" if flushed else ""
            setups[f"PyG DDP{word}, {ranks} ranks ({size})"] = Setup(
                "pyg", ranks, 1, batch_size=int(size), flushed=flushed
            )
    return setups


ONE = "1 rank x 1 thread"


def many_threads(ranks: int) -> str:
    return f"1 rank x {ranks} threads"


def folded(ranks: int) -> str:
    return f"1 rank x {ranks} threads, {ranks} replicas"


def many_ranks(ranks: int) -> str:
    return f"{ranks} ranks x 1 thread"


def delayed(ranks: int) -> str:
    return f"{ranks} ranks, delayed as {SIMULATED_RANKS} on 1 Gbit/s"


def make_ratios(figures: dict[str, Any], ranks: int) -> dict[str, float]:
    """Return how many times as fast the ranks are as each other contender, round by round."""
    mine = figures[many_ranks(ranks)]["rounds"]
    return {
        name: statistics.median(a / b for a, b in zip(mine, other["rounds"], strict=True))
        for name, other in figures.items()
        if name != many_ranks(ranks)
    }


def make_scaling(figures: dict[str, Any], gradient_bytes: int, ranks: int) -> dict[str, Any]:
    """Return what the formula says, and how the simulated point compares."""
    fast, slow = figures[many_ranks(ranks)], figures[delayed(ranks)]
    update = Update(fast["step_s"] * (1 - fast["collective_share"]), gradient_bytes)
    wire = update.collective_s(SIMULATED_RANKS, GIGABIT)
    return {
        "step_s": update.step_s,
        "latency_s": LATENCY_S,
        "speedup": scaling_table(update),
        "simulated": {
            "ranks": SIMULATED_RANKS,
            "network": "1 Gbit/s",
            "collective_s": wire,
            # The delay comes on top of what the loopback takes.
            "predicted_step_s": fast["step_s"] + wire,
            "measured_step_s": slow["step_s"],
        },
    }


def print_model(model: str, result: dict[str, Any], ranks: int) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console(width=110)
    table = Table(title=f"Model {model}: {result['gradient_bytes'] / 2**20:.2f} MiB of gradients")
    for heading in (
        "contender",
        "molecules/s",
        f"{ranks} ranks are",
        "collective",
        "loading",
        "loss",
    ):
        table.add_column(heading, justify="left" if heading == "contender" else "right")
    for name, figures in result["contenders"].items():
        ratio = result["ratios"].get(name)
        table.add_row(
            name,
            f"{figures['molecules_per_s']:,.0f}",
            "" if ratio is None else f"{ratio:.2f}x",
            f"{figures['collective_share']:.1%}",
            f"{figures['loading_share']:.1%}",
            "{:.3f} -> {:.3f}".format(*figures["losses"]),
        )
    console.print(table)
    scaling = result["scaling"]
    table = Table(title=f"Speed-up by the formula, from a step of {scaling['step_s'] * 1e3:.1f} ms")
    table.add_column("ranks", justify="right")
    for network in NETWORKS:
        table.add_column(network, justify="right")
    for count in RANKS:
        table.add_row(
            f"{count:,}", *(f"{scaling['speedup'][network][count]:,.1f}x" for network in NETWORKS)
        )
    console.print(table)
    point = scaling["simulated"]
    console.print(
        f"simulated, {point['ranks']} ranks on {point['network']}: a step of "
        f"{point['measured_step_s'] * 1e3:.2f} ms, by the formula "
        f"{point['predicted_step_s'] * 1e3:.2f} ms"
    )


if __name__ == "__main__":
    main()
