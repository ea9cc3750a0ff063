"""Per-step time of eager PyTorch, torch.compile with a fused optimiser, and Torchkiln.

    python benchmarks/step.py [--workloads cnn gcn mlp transformer] [--repeats 7] [--seconds 1]

Prints ratios measured side by side and writes benchmarks/results/<machine>/step.json.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from _results import result_path
from _small import parse_arguments

from torchkiln.cli import bench_steps

WORKLOADS = ["cnn", "gcn", "mlp", "transformer"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workloads", nargs="+", choices=WORKLOADS, default=WORKLOADS)
    parser.add_argument("--repeats", type=int, default=7, help="rounds")
    parser.add_argument("--seconds", type=float, default=1.0, help="of each contender in a round")
    switch = argparse.BooleanOptionalAction
    parser.add_argument("--compare_compile", action=switch, default=True, help="torch.compile, too")
    parser.add_argument("--warm_start", action=switch, default=True, help="a second process, too")
    parser.add_argument("--json", type=Path, default=result_path("step"))
    arguments = parse_arguments(
        parser, repeats=1, seconds=0.01, compare_compile=False, warm_start=False
    )
    arguments.json.parent.mkdir(parents=True, exist_ok=True)
    bench_steps(
        workloads=arguments.workloads,
        repeats=arguments.repeats,
        seconds=arguments.seconds,
        compare_compile=arguments.compare_compile,
        warm_start=arguments.warm_start,
        json=arguments.json,
    )


if __name__ == "__main__":
    main()
