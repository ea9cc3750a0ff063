"""Updates per second of two stages with a thread each, against one process with one thread.

    python benchmarks/pipeline.py [--models cosmic,transformer] [--accumulation 4,8,16]

The same model, micro-batches and updates; a stage is a process on a core of its own. One process
and two take turns, each for some updates in newly started processes, whose executables come from a
cache: so the peak of a process' memory (`ru_maxrss`) has no compiler in it. It is told as it is,
and less what a process needs before it has a model. Figures are medians over all updates.

On a machine that does other things, too, times of two processes say little. So the processor time
of each process is told, and the speed-up that follows if each has a core of its own, and the first
stage waits for the last one only at the end of an update: "bound".
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from _results import machine, result_path, write_result
from _small import parse_arguments

CHILD = Path(__file__).with_name("_pipeline_child.py")
SIZES: dict[str, dict[str, Any]] = {
    "cosmic": {"batch": 1, "shape": [512, 512], "n_initial_filters": 16, "network_depth": 4},
    "transformer": {"batch": 1, "shape": 64, "width": 1024, "depth": 8, "vocabulary": 2000},
}
SMALL: dict[str, dict[str, Any]] = {
    "cosmic": {"batch": 1, "shape": [16, 16], "n_initial_filters": 2, "network_depth": 2},
    "transformer": {"batch": 2, "shape": 8, "width": 16, "depth": 8, "vocabulary": 20},
}
# Where the second stage begins, as `torchkiln fit --stages 2 --profile` says: half of the time
# of one process is before.
STAGES = {
    "cosmic": ["network.first", "network.deepest.blocks.4"],
    "transformer": [["embedding"], ["layers.4", "head"]],
}
# What the stages compute again in backward: where images are largest, which is most of the memory
# and least of the arithmetic. One process keeps everything.
RECOMPUTED: dict[str, list[str]] = {
    "cosmic": [
        "network.first",
        *(f"network.down_blocks.{level}.{block}" for level in (0, 1, 2) for block in (0, 1)),
        "network.downsamples.0",
        "network.downsamples.1",
        *(f"network.up_blocks.{level}.{block}" for level in (0, 1) for block in (0, 1)),
        "network.connections.0",
    ],
    "transformer": [],
}


def read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", default=",".join(SIZES))
    parser.add_argument("--accumulation", default="4,8,16", help="micro-batches of an update")
    parser.add_argument("--rounds", type=int, default=3, help="turns of one process and of two")
    parser.add_argument("--updates", type=int, default=4, help="of each turn, after two others")
    parser.add_argument("--keep-all", action="store_true", help="stages recompute nothing")
    parser.add_argument("--cache", type=Path, help="directory of executables kept between runs")
    parser.add_argument("--json", type=Path, default=result_path("pipeline"))
    return parse_arguments(parser, accumulation="3", rounds=1, updates=1)


def main() -> None:
    arguments = read_arguments()
    record: dict[str, Any] = {}
    for model in arguments.models.split(","):
        for accumulation in map(int, arguments.accumulation.split(",")):
            found = measure(model, accumulation, arguments)
            record[f"{model}, {accumulation} micro-batches"] = found
            print_figures(model, accumulation, found)
    settings = {
        key: value for key, value in vars(arguments).items() if key not in ("json", "cache")
    }
    settings["sizes"] = SMALL if arguments.small else SIZES
    write_result(arguments.json, {"machine": machine(), "settings": settings, "models": record})
    print(f"\nwritten: {arguments.json}")


def measure(model: str, accumulation: int, arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the figures of one process and of two stages."""
    with tempfile.TemporaryDirectory() as folder:
        cache = arguments.cache or Path(folder)
        settings = {
            "model": model,
            "sizes": (SMALL if arguments.small else SIZES)[model],
            "accumulation": accumulation,
            "pipeline": STAGES[model],
            "threads": 1,
            "cache": str(cache),
            "updates": arguments.updates,
            "recompute": None,
        }
        divided = {**settings, "recompute": None if arguments.keep_all else RECOMPUTED[model]}
        run({**settings, "updates": 0}, 1)  # compiles
        run({**divided, "updates": 0}, 2)
        rounds = [(run(settings, 1), run(divided, 2)) for _ in range(arguments.rounds)]
    ones, twos = zip(*rounds, strict=True)
    for one, two in rounds:
        for mine, theirs in zip(one["losses"], two["losses"], strict=True):
            if abs(mine - theirs) > 1e-4 * abs(mine):
                raise SystemExit(f"{model}: losses {one['losses']} and {two['losses']} differ")
    ratios = [
        statistics.median(one["seconds"]) / statistics.median(two["seconds"]) for one, two in rounds
    ]
    return {
        "one_process": figures(ones),
        "two_stages": figures(twos),
        "speed_up": statistics.median(ratios),
        "bound": bound(figures(ones), figures(twos), accumulation),
        "memory_share": shares(ones, twos),
        "rounds": {
            "one_process_s": [value for one in ones for value in one["seconds"]],
            "two_stages_s": [value for two in twos for value in two["seconds"]],
        },
    }


def run(settings: dict[str, Any], ranks: int) -> dict[str, Any]:
    """Return what processes told that trained together."""
    launcher = [] if ranks == 1 else ["-m", "torch.distributed.run", "--standalone"]
    launcher += [] if ranks == 1 else ["--nproc-per-node", str(ranks)]
    command = [sys.executable, *launcher, str(CHILD), json.dumps(settings)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=3600, check=False
    )
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stdout}{done.stderr}")
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def figures(runs: tuple[dict[str, Any], ...]) -> dict[str, Any]:
    """Return the median time of an update, and the peak memory of each process."""
    seconds = statistics.median(value for one in runs for value in one["seconds"])
    processes = list(zip(*(one["processes"] for one in runs), strict=True))
    return {
        "update_s": seconds,
        "updates_per_s": 1 / seconds,
        "peak_mib": [max(one["peak_mib"] for one in process) for process in processes],
        "own_mib": [
            max(one["peak_mib"] - one["before_mib"] for one in process) for process in processes
        ],
        "waiting_s": [statistics.median(one["waiting_s"] for one in own) for own in processes],
        "processor_s": [statistics.median(one["processor_s"] for one in own) for own in processes],
    }


def bound(one: dict[str, Any], two: dict[str, Any], accumulation: int) -> float:
    """Return the speed-up of stages that wait for each other at the ends of an update alone."""
    stages = two["processor_s"]
    per_micro_batch = [seconds / accumulation for seconds in stages]
    update_s = max(stages) + sum(per_micro_batch) - max(per_micro_batch)
    return float(one["processor_s"][0] / update_s)


def shares(ones: tuple[dict[str, Any], ...], twos: tuple[dict[str, Any], ...]) -> dict[str, Any]:
    """Return the memory of each stage relative to one process."""
    one, two = figures(ones), figures(twos)
    return {name: [stage / one[name][0] for stage in two[name]] for name in ("peak_mib", "own_mib")}


def print_figures(model: str, accumulation: int, found: dict[str, Any]) -> None:
    one, two, share = found["one_process"], found["two_stages"], found["memory_share"]
    stages = zip(two["own_mib"], share["own_mib"], share["peak_mib"], strict=True)
    memory = [f"{mib:.0f} MiB ({own:.0%}; in all {all_:.0%})" for mib, own, all_ in stages]
    busy = ", ".join(f"{seconds:.2f} s" for seconds in two["processor_s"])
    print(
        f"{model}, {accumulation} micro-batches: one process {one['update_s']:.3f} s an update, "
        f"two stages {two['update_s']:.3f} s: {found['speed_up']:.2f}x, bound "
        f"{found['bound']:.2f}x (processor {one['processor_s'][0]:.2f} s, stages {busy}); memory "
        f"{one['own_mib'][0]:.0f} MiB, stages {', '.join(memory)}",
        flush=True,
    )


if __name__ == "__main__":
    main()
