"""Training of PyG's own layers, packed and compiled, against PyG eager, on small graphs.

    python benchmarks/layers.py [--threads 1] [--rounds 5] [--models GCN,GAT] [--data mutag,qm9]

GCN, GIN, GraphSAGE, GAT, PNA (3 layers, 64 features, mean over nodes) train with Adam on MUTAG
(repeated) and on bond graphs of QM9; PyG's SchNet and DimeNet++ (3 blocks, 64 features), which need
positions, on QM9 only. PyG reads batches from its `DataLoader` and trains eagerly, with 32, 128 and
512 graphs a batch, of which the fastest counts; Torchkiln reads packed batches of 128 graphs on
average from a `FixedSizeLoader`. Loading counts; finding the triplets of DimeNet++ does not, for
either. All take turns; ratios are medians over the rounds. Writes
benchmarks/results/<machine>/layers.json, beside what other thread settings and models left there,
and docs/images/layers_speed.png.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from _results import result_path
from _small import parse_arguments

from torchkiln.core._threads import pin_threads

ROOT = Path(__file__).parents[1]


def read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, help="pinned; default: one for each core")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.5, help="of a contender's turn")
    parser.add_argument("--models", help="names, separated by commas; default: all")
    parser.add_argument("--data", default="mutag,qm9", help="mutag, qm9 or both")
    parser.add_argument("--limit", type=int, default=20_000, help="molecules of QM9")
    parser.add_argument("--only", help="beginnings of contenders' names, separated by commas")
    parser.add_argument(
        "--ablation", action="store_true", help="also without Torchkiln's own aggregation"
    )
    parser.add_argument("--cache", type=Path, help="executables kept between runs")
    parser.add_argument("--json", type=Path, default=result_path("layers"))
    parser.add_argument("--plot", type=Path, default=ROOT / "docs/images/layers_speed.png")
    return parse_arguments(parser, rounds=1, seconds=0.01, limit=100)


def main() -> None:
    arguments = read_arguments()
    threads = pin_threads(arguments.threads)
    # Only now: torch reads the number of threads when it is imported.
    from _layers_contenders import make_contenders
    from _layers_report import draw, print_table
    from _layers_workloads import MODELS, can_run, mutag, qm9_bonds
    from _schnet_report import keep, summarize
    from _schnet_rounds import run_rounds

    sources = {"mutag": mutag, "qm9": lambda: qm9_bonds(arguments.limit)}
    names = arguments.models.split(",") if arguments.models else list(MODELS)
    if unknown := set(names) - set(MODELS):
        raise SystemExit(f"no model {sorted(unknown)}; choose from {', '.join(MODELS)}")
    results: dict[str, dict[str, dict]] = {name: {} for name in names}
    for data in arguments.data.split(","):
        if data not in sources:
            raise SystemExit(f"no data {data!r}; choose from {', '.join(sources)}")
        graphs = sources[data]()
        for name in names:
            if can_run(name, graphs):
                contenders = make_contenders(name, graphs, arguments)
                title = f"{name} on {graphs.name}"
                outcomes = run_rounds(contenders, arguments.rounds, arguments.seconds, title)
                results[name][graphs.name] = summarize(outcomes)
    print_table(results, threads)
    everything = keep(results, threads, vars(arguments), arguments.json)
    draw(everything, arguments.plot)
    print(f"\nwritten: {arguments.json} and {arguments.plot}")


if __name__ == "__main__":
    main()
