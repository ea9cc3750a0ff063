"""Does the cost of training grow linearly? Molecules per second by size of dataset and of packs.

    python benchmarks/schnet_scaling.py [--models A,B] [--rounds 7] [--seconds 1.5] [--redraw]

SchNet with interpolated filters, whole training steps on QM9 with live loading. First over datasets
of 1,000 to 130,831 molecules (random parts of QM9, packs of 2,048 nodes, one executable for all),
then over packs of 2,048 to 8,192 nodes (all of QM9). Who is measured takes turns, in another order
each round; figures are medians of rates relative to the mean of their round, so that slow phases of
the machine hit everybody. What an epoch costs once, planning its packs, is timed apart and spread
over the molecules of that epoch: a turn is shorter than an epoch of a large dataset. Writes
benchmarks/results/<machine>/schnet_scaling.json and docs/images/schnet_scaling.png; `--redraw` only
draws.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from _results import machine, read_result, result_path, write_result
from _small import parse_arguments

from torchkiln.core._threads import pin_threads

ROOT = Path(__file__).resolve().parents[1]
RESULT = result_path("schnet_scaling")
PICTURE = ROOT / "docs/images/schnet_scaling.png"
DATASET_SIZES = (1_000, 4_000, 16_000, 65_000, 130_831)
PACK_SIZES = (2_048, 4_096, 8_192)
# Kind of measurement: name of the axis, and how far the slowest may be from the fastest.
AXES = {"datasets": ("molecules in the dataset", 0.10), "packs": ("nodes in a pack", 0.25)}


def read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", default="A,B", help="A: 128/6/50, 10 A; B: 100/4/25, 6 A, k=28")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=1.5, help="of each turn")
    parser.add_argument("--threads", type=int, help="default: one for each core")
    parser.add_argument("--limit", type=int, help="molecules at most, to try the script out")
    parser.add_argument("--json", type=Path, default=RESULT)
    parser.add_argument("--plot", type=Path, default=PICTURE)
    parser.add_argument("--redraw", action="store_true", help="only draw what was measured")
    return parse_arguments(parser, rounds=1, seconds=0.01, limit=600)


class Runner:
    """Trains on one dataset with one size of packs, a turn at a time."""

    def __init__(self, loader: Any, step: Callable[[Any], int]) -> None:
        self._loader = loader
        self._step = step
        self._batches: Iterator[Any] = iter(())
        self._planning_s: list[float] = []
        self._num_molecules = len(loader.store)

    def run(self, seconds: float) -> float:
        """Return molecules per second, with the share of planning that falls to a molecule."""
        molecules, busy = 0, 0.0
        while busy < seconds:
            start = time.perf_counter()
            batch = next(self._batches, None)
            if batch is None:
                # Planning comes with the first batch, whose own making is lost among it.
                self._batches = iter(self._loader)
                batch = next(self._batches)
                planned = time.perf_counter()
                self._planning_s.append(planned - start)
                start = planned
            molecules += self._step(batch)
            busy += time.perf_counter() - start
        planning_s = statistics.median(self._planning_s) / self._num_molecules
        return 1.0 / (busy / molecules + planning_s)


def make_program(model: str) -> Callable[[Any], int]:
    """Return one training step of a new program, which counts the molecules of its batch."""
    import torch
    from _schnet_contenders import KEYS, LEARNING_RATE, MODELS

    from torchkiln import Options, training_model
    from torchkiln.datasets._array_cache import data_dir
    from torchkiln.models import MoleculeRegression, SchNet

    torch.manual_seed(0)
    module = MoleculeRegression(SchNet(**MODELS[model].arguments, filter="table"))
    optimizer = torch.optim.Adam(module.parameters(), lr=LEARNING_RATE)
    options = Options(cache_dir=data_dir() / "benchmark_executables", show_progress=False)
    program = training_model(module, options, optimizer)

    def step(batch: Any) -> int:
        _, loss = program(*(batch[key] for key in KEYS))
        if not loss.isfinite():
            raise FloatingPointError(f"the loss became {loss.item()}")
        return int(batch.graph_mask.sum())

    return step


def make_runners(model: str, limit: int | None) -> dict[str, dict[int, Runner]]:
    """Return who is measured, by kind and size."""
    import numpy as np
    from _schnet_contenders import MODELS

    from torchkiln.datasets import load_qm9
    from torchkiln.graphs import FixedSizeLoader

    size = MODELS[model]
    dataset = load_qm9(
        limit=limit,
        k=size.k,
        cutoff_angstrom=size.arguments["cutoff"],
        references="fitted",
        standardize=True,
    )
    store = dataset.store
    packs, steps = {}, {}
    for num_nodes in PACK_SIZES:
        loader = FixedSizeLoader(store, num_nodes=num_nodes, shuffle=True)
        steps[num_nodes] = make_program(model)
        packs[num_nodes] = Runner(loader, steps[num_nodes])
    spec = FixedSizeLoader(store, num_nodes=PACK_SIZES[0], shuffle=True).spec
    order = np.random.default_rng(0).permutation(len(store))
    datasets = {}
    for count in DATASET_SIZES:
        part = store[np.sort(order[: min(count, len(store))])]
        loader = FixedSizeLoader(part, spec, shuffle=True)
        datasets[count] = Runner(loader, steps[PACK_SIZES[0]])
    return {"datasets": datasets, "packs": packs}


def measure(runners: dict[int, Runner], rounds: int, seconds: float) -> dict[str, Any]:
    """Let all take turns; return rates, and how far the slowest is from the fastest."""
    for runner in runners.values():
        runner.run(min(seconds, 0.5))
    rates: dict[int, list[float]] = {size: [] for size in runners}
    order = random.Random(0)
    for _ in range(rounds):
        for size in order.sample(list(runners), len(runners)):
            rates[size].append(runners[size].run(seconds))
    means = [statistics.mean(turn) for turn in zip(*rates.values(), strict=True)]
    relative = {
        size: statistics.median(rate / mean for rate, mean in zip(same, means, strict=True))
        for size, same in rates.items()
    }
    best = max(relative.values())
    return {
        "molecules_per_s": {size: statistics.median(same) for size, same in rates.items()},
        "share_of_fastest": {size: value / best for size, value in relative.items()},
        "spread": 1.0 - min(relative.values()) / best,
        "rounds": rates,
    }


def show(model: str, kind: str, result: dict[str, Any]) -> None:
    title, allowed = AXES[kind]
    spread = result["spread"]
    print(f"\n{model}, {title}: spread {spread:.1%}, allowed {allowed:.0%}")
    for size, share in result["share_of_fastest"].items():
        rate = result["molecules_per_s"][size]
        print(f"{int(size):>12,}{rate:>10,.0f} molecules/s{share:>9.1%} of the fastest", flush=True)


def draw(record: dict[str, Any], path: Path) -> None:
    """Draw rates relative to the fastest, with the band that is allowed."""
    from torchkiln.report._theme import LIGHT, Theme, render

    def fill(figure: Any, theme: Theme) -> None:
        for axis, (kind, (title, allowed)) in zip(figure.subplots(1, 2), AXES.items(), strict=True):
            axis.axhspan(1 - allowed, 1.0, color=theme.grid, label=f"within {allowed:.0%}")
            looks = zip((theme.main, theme.second), record["results"].items(), strict=False)
            for color, (model, kinds) in looks:
                shares = {int(size): s for size, s in kinds[kind]["share_of_fastest"].items()}
                fastest = max(kinds[kind]["molecules_per_s"].values())
                label = f"{model}, up to {fastest:,.0f} molecules/s"
                axis.plot(list(shares), list(shares.values()), "o-", color=color, label=label)
            axis.set_xscale("log", base=2 if kind == "packs" else 10)
            axis.set_xticks(list(shares), [f"{size:,}" for size in shares], rotation=30)
            axis.minorticks_off()
            axis.set_ylim(0, 1.1)
            axis.set_xlabel(title)
            axis.set_ylabel("molecules/s, relative to the fastest")
            axis.legend(frameon=False, loc="lower center")

    path.parent.mkdir(exist_ok=True)
    path.write_bytes(render(fill, LIGHT, (9.5, 3.8)))


def main() -> None:
    arguments = read_arguments()
    if arguments.redraw:
        draw(read_result(arguments.json), arguments.plot)
        return
    threads = pin_threads(arguments.threads)
    results: dict[str, dict[str, Any]] = {}
    for model in arguments.models.split(","):
        results[model] = {}
        for kind, runners in make_runners(model, arguments.limit).items():
            results[model][kind] = measure(runners, arguments.rounds, arguments.seconds)
            show(model, kind, results[model][kind])
    if arguments.limit is not None and arguments.json == RESULT:
        print("\nnothing written: a part of QM9 tells nothing about scaling")
        return
    path = arguments.json
    earlier = read_result(path).get("results", {})
    record = {**machine(), "threads": threads, "rounds": arguments.rounds}
    record |= {"seconds": arguments.seconds, "results": {**earlier, **results}}
    write_result(path, record)
    # Read again: keys of numbers are text from here on.
    draw(read_result(path), arguments.plot)
    print(f"\nresults: {path}, picture: {arguments.plot}")


if __name__ == "__main__":
    main()
