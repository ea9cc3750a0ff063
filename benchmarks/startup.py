"""Seconds from a command to its first training step, in fresh processes that find everything.

    .venv/bin/python benchmarks/startup.py [--repeats 5] [--workers 0]

The first run, which may compile, is not counted. Writes benchmarks/results/<machine>/startup.json.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from _results import machine, result_path, write_result
from _small import parse_arguments

ROOT = Path(__file__).parents[1]
FLAGS = ("--config", "configs/qm9_quick.yml", "--num_epochs", "1")
FLAGS += ("--validation", "false", "--run_name", "startup", "--json")


def start_once(workers: int, limit: int) -> dict[str, float]:
    """Run the benchmark in a process of its own; return the seconds of each part of its start."""
    with tempfile.TemporaryDirectory(prefix="torchkiln-") as folder:
        command = [sys.executable, "bench.py", *FLAGS, "--output_dir", folder]
        done = subprocess.run(
            [*command, "--num_workers", str(workers), "--limit", str(limit)],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
        )
    if done.returncode:
        sys.exit(f"bench.py failed:\n{done.stderr}")
    seconds: dict[str, float] = json.loads(done.stdout)["machine"]["startup_seconds"]
    return seconds


def main() -> None:
    """Measure, print the medians, keep all figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--limit", type=int, default=2000, help="molecules")
    parser.add_argument("--json", type=Path, default=result_path("startup"))
    wanted = parse_arguments(parser, repeats=1, limit=100)
    start_once(wanted.workers, wanted.limit)
    runs = [start_once(wanted.workers, wanted.limit) for _ in range(wanted.repeats)]
    medians = {part: statistics.median(run[part] for run in runs) for part in runs[0]}
    for part, seconds in medians.items():
        all_s = "  ".join(f"{run[part]:5.2f}" for run in runs)
        print(f"{part:<12} {seconds:6.2f} s   ({all_s})")
    record = {
        "command": f"bench.py {' '.join(FLAGS)} --num_workers {wanted.workers} "
        f"--limit {wanted.limit}",
        **machine(),
        "median_seconds": medians,
        "runs": runs,
    }
    write_result(wanted.json, record)
    print(f"wrote {wanted.json}")


if __name__ == "__main__":
    main()
