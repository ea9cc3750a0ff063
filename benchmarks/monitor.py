"""What a beacon costs, and whether the monitor tells the speed that the benchmark finds itself.

    .venv/bin/python benchmarks/monitor.py [--updates 200000] [--rounds 7] [--epochs 3]

An update is what a program tells around one call: that it began, and that it ended. Costs are those
of an empty call, the loop around it included. Then `bench.py` trains while a monitor looks four
times a second. What it said over each epoch is compared with the run's own report of that epoch:
over the same seconds, because the speed of a machine with other work changes all the time.
Writes benchmarks/results/<machine>/monitor.json.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import timeit
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from _results import machine, result_path, write_result
from _small import parse_arguments

from torchkiln.core._beacon import ProgramBeacon, tell_training, waiting_for_data
from torchkiln.monitor import Watch

ROOT = Path(__file__).parents[1]
FLAGS = ("--config", "configs/qm9_quick.yml", "--run_name", "monitored", "--json")
LOOK_S = 0.25


def measure_updates(updates: int, rounds: int) -> dict[str, Any]:
    """Return nanoseconds of each thing that is told, with a beacon and without one."""
    costs: dict[str, Any] = {}
    program = ProgramBeacon("benchmark", "training", "none")
    program.is_ready("compiled", "cpu")

    def call() -> None:
        with program:
            pass

    def wait() -> None:
        with waiting_for_data:
            pass

    def train() -> None:
        tell_training(96, 0.5, 1, 5)

    def nothing() -> None:
        pass

    told = {"call of a program": call, "wait for a batch": wait, "step of a loop": train}
    for name, function in {**told, "empty function": nothing}.items():
        found = [timeit.timeit(function, number=updates) / updates * 1e9 for _ in range(rounds)]
        costs[name] = {"nanoseconds": statistics.median(found), "rounds": found}
    found = []
    for _ in range(rounds):
        start = time.perf_counter()
        Watch().look()
        found.append((time.perf_counter() - start) * 1e6)
    costs["look of a monitor"] = {"microseconds": statistics.median(found), "rounds": found}
    return costs


def measure_without(updates: int, rounds: int) -> float:
    """Return nanoseconds of a call in a process whose beacon is off."""
    code = (
        "import statistics, timeit\nfrom torchkiln.core._beacon import ProgramBeacon\n"
        "program = ProgramBeacon('benchmark', 'training', 'none')\n"
        "def call():\n    with program: pass\n"
        f"print(statistics.median(timeit.timeit(call, number={updates}) / {updates} * 1e9"
        f" for _ in range({rounds})))"
    )
    environment = {**os.environ, "TORCHKILN_BEACON": "0"}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment
    )
    return float(done.stdout)


def compare_speeds(epochs: int, limit: int) -> dict[str, Any]:
    """Train, look at it meanwhile, and return both speeds."""
    with tempfile.TemporaryDirectory(prefix="torchkiln-") as folder:
        command = [sys.executable, "bench.py", *FLAGS, "--output_dir", folder]
        command += ["--num_epochs", str(epochs)] + (["--limit", str(limit)] if limit else [])
        said = Path(folder) / "said.json"
        with (
            said.open("w") as output,
            subprocess.Popen(command, cwd=ROOT, stdout=output) as bench,
        ):
            looks = look_until_end(bench)
        if bench.returncode:
            sys.exit("bench.py failed, see above")
        result = json.loads(said.read_text())
    speeds: dict[str, Any] = {}
    for epoch in result["epochs"]:
        own = {
            # All epochs have as many.
            "steps": result["num_steps"] / len(result["epochs"]) / epoch["seconds"],
            "molecules": epoch["molecules_per_s"],
        }
        for name, value in own.items():
            seen = [look for look in looks[name] if look.epoch == epoch["epoch"] + 1]
            if seen:
                mean = mean_speed(seen)
                speeds[f"epoch {epoch['epoch'] + 1}, {name} a second"] = {
                    "bench": value,
                    "monitor": mean,
                    "difference_percent": 100 * (mean / value - 1),
                    "rounds": [look.speed for look in seen],
                }
    return speeds


@dataclass(frozen=True, slots=True)
class Look:
    """What a monitor said of a run: how many more steps or molecules there were, and how fast."""

    epoch: int
    count: int
    speed: float


def mean_speed(looks: list[Look]) -> float:
    """Return all that was counted, over the time that it took by what the monitor said."""
    return sum(look.count for look in looks) / sum(look.count / look.speed for look in looks)


def look_until_end(bench: subprocess.Popen[bytes]) -> dict[str, list[Look]]:
    """Return what a monitor said while the process trained, from look to look.

    Left out are looks that saw no step end, as while weights are validated, and the first of an
    epoch, which saw the validation before: the report of a run does not count that time either.
    """
    watch = Watch(window_s=0.0)
    looks: dict[str, list[Look]] = {"steps": [], "molecules": []}
    before: dict[str, tuple[int, int]] = {}
    while bench.poll() is None:
        time.sleep(LOOK_S)
        for process in watch.look().processes:
            training = process.training
            if process.pid != bench.pid or training is None:
                continue
            told = {"molecules": (training.samples, training.samples_per_s)}
            for program in process.programs:
                if program.kind == "training":
                    told["steps"] = (program.steps, program.steps_per_s)
            for name, (total, speed) in told.items():
                epoch, earlier = before.get(name, (0, 0))
                before[name] = (training.epoch, total)
                if epoch == training.epoch and total > earlier and speed is not None:
                    looks[name].append(Look(epoch, total - earlier, speed))
    return looks


def main() -> None:
    """Measure, print, keep all figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--updates", type=int, default=200_000)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--limit", type=int, default=0, help="molecules; 0: all")
    parser.add_argument("--json", type=Path, default=result_path("monitor"))
    wanted = parse_arguments(parser, updates=1000, rounds=2, epochs=1, limit=200)
    costs = measure_updates(wanted.updates, wanted.rounds)
    costs["call of a program, beacon off"] = {
        "nanoseconds": measure_without(wanted.updates, wanted.rounds)
    }
    for name, cost in costs.items():
        unit = "us" if "microseconds" in cost else "ns"
        print(f"{name:<32} {cost.get('nanoseconds', cost.get('microseconds')):8.0f} {unit}")
    speeds = compare_speeds(wanted.epochs, wanted.limit)
    for name, speed in speeds.items():
        print(
            f"{name:<30} bench {speed['bench']:10,.1f}   monitor {speed['monitor']:10,.1f}   "
            f"{speed['difference_percent']:+.2f} %"
        )
    if not speeds:
        print("the run was over before anybody looked twice")
    record = {
        "command": f"bench.py {' '.join(FLAGS)} --num_epochs {wanted.epochs}",
        **machine(),
        "costs": costs,
        "speeds": speeds,
    }
    write_result(wanted.json, record)
    print(f"wrote {wanted.json}")


if __name__ == "__main__":
    main()
