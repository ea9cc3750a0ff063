"""Molecules per second through SchNet, training and inference: PyG, SchNetPack and Torchkiln.

    python benchmarks/schnet.py [--threads 1] [--models A,B] [--rounds 5] [--seconds 2] [--limit N]
                                [--only NAMES] [--schnetpack PYTHON]

Everybody has the same molecules of QM9, the same standardised target, the same initial weights and
Adam, and loads batches live, in its own process. After a warm-up the contenders take turns, some
seconds each; figures are medians over the rounds, ratios are formed round by round. The losses of
the very steps that were timed stand beside them: a fast step that does not learn is worth nothing.

PyG gets its edges with the batch (it would compute them anew at every step) and the best of three
batch sizes, twice: as people get it, and "flushed", with denormal numbers taken for zero, which the
tails of its Gaussians are full of and many processors are slow with. SchNetPack needs an
environment of its own (`pip install schnetpack`), named by its Python. Threads are pinned; results
of each number of threads are kept side by side in benchmarks/results/<machine>/schnet.json, the
picture is docs/images/schnet.png.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from _results import result_path
from _small import parse_arguments

from torchkiln.core._threads import pin_threads

ROOT = Path(__file__).resolve().parents[1]


def read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", default="A,B", help="A: 128/6/50, 10 A; B: 100/4/25, 6 A, k=28")
    parser.add_argument("--modes", default="training,inference")
    parser.add_argument("--only", help="contenders, by the beginning of their names, with commas")
    parser.add_argument("--threads", type=int, help="default: one for each core")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0, help="of each contender in a round")
    parser.add_argument("--limit", type=int, default=12_000, help="molecules")
    parser.add_argument("--num_nodes", type=int, default=2_320, help="of a pack when training")
    parser.add_argument("--schnetpack", metavar="PYTHON", help="interpreter that has SchNetPack")
    parser.add_argument("--cache", type=Path, help="directory of executables kept between runs")
    parser.add_argument("--json", type=Path, default=result_path("schnet"))
    parser.add_argument("--plot", type=Path, default=ROOT / "docs/images/schnet.png")
    return parse_arguments(parser, models="B", rounds=1, seconds=0.01, limit=60, num_nodes=200)


def main() -> None:
    arguments = read_arguments()
    threads = pin_threads(arguments.threads)
    # Only now: torch reads the number of threads when it is imported.
    from _schnet_contenders import MODELS, Workload, make_contenders
    from _schnet_report import draw, keep, print_tables, summarize
    from _schnet_rounds import run_rounds

    results: dict[str, dict[str, dict]] = {}
    for name in arguments.models.split(","):
        if name not in MODELS:
            raise SystemExit(f"no model {name!r}; choose from {', '.join(MODELS)}")
        workload = Workload.load(MODELS[name], arguments.limit, arguments.num_nodes)
        for mode in arguments.modes.split(","):
            contenders = make_contenders(workload, mode, arguments)
            try:
                results.setdefault(name, {})[mode] = summarize(
                    run_rounds(
                        contenders, arguments.rounds, arguments.seconds, f"{mode} of model {name}"
                    )
                )
            finally:
                for contender in contenders:
                    contender.close()
    print_tables(results, threads)
    everything = keep(results, threads, vars(arguments), arguments.json)
    draw(everything, arguments.plot)
    print(f"\nwritten: {arguments.json} and {arguments.plot}")


if __name__ == "__main__":
    main()
