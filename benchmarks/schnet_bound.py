"""How much of a training step of SchNet is the arithmetic that nothing can avoid.

    python benchmarks/schnet_bound.py [--threads 1] [--models A,B] [--num_nodes 2320,9280]
                                      [--rounds 25] [--seconds 0.4] [--trace FILE]

Counts the operations that are left in the compiled step of `SchNet(filter="table")` on packed QM9:
matrix products with their shapes and strides, read off the captured graph, and the multiply-adds of
the convolutions, from the edges that are really there. Then steps (loading included) and sgemm on
exactly those products take turns; figures are medians over the rounds. Two shares:

products   seconds that the step's matrix products take alone, warm, by the seconds of a step
bound      seconds that all counted operations, convolutions too, would take at the speed of sgemm
           on the shape of the model's own layers, by the seconds of a step

What has no multiply-adds of this kind is not counted and makes both smaller: softplus, sums, Adam,
embeddings, loading. `--trace` writes some steps for chrome://tracing and prints what took longest.
Results of each number of threads are kept side by side in
benchmarks/results/<machine>/schnet_bound.json.
"""

from __future__ import annotations

import argparse
import statistics
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from _results import result_path
from _small import parse_arguments

from torchkiln.core._threads import pin_threads

if TYPE_CHECKING:
    from _schnet_contenders import Workload
    from _schnet_operations import Operations
    from _schnet_rounds import Contender

ROOT = Path(__file__).resolve().parents[1]
_BATCHES_COUNTED = 4
_STEPS_TRACED = 5
# How long sgemm runs on either side of steps, by the seconds of those.
_SGEMM_SHARE = 0.15
_ROWS_PRINTED = 14


def read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", default="A,B", help="A: 128/6/50, 10 A; B: 100/4/25, 6 A, k=28")
    parser.add_argument("--threads", type=int, help="default: one for each core")
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--seconds", type=float, default=0.4, help="of steps in a round")
    parser.add_argument("--limit", type=int, default=12_000, help="molecules")
    parser.add_argument("--num_nodes", default="2320,9280", help="sizes of packs")
    parser.add_argument("--trace", type=Path, help="write a trace of some steps there and stop")
    parser.add_argument("--cache", type=Path, help="directory of executables kept between runs")
    parser.add_argument("--json", type=Path, default=result_path("schnet_bound"))
    # What `make_contenders` asks for.
    parser.set_defaults(only="Torchkiln table", schnetpack=None)
    return parse_arguments(parser, rounds=1, seconds=0.01, limit=100, num_nodes="200,400")


def main() -> None:
    arguments = read_arguments()
    threads = pin_threads(arguments.threads)
    # Only now: torch reads the number of threads when it is imported.
    from _schnet_contenders import MODELS, Workload, make_contenders
    from _schnet_report import keep

    results: dict[str, dict[str, dict[str, Any]]] = {}
    for name in arguments.models.split(","):
        if name not in MODELS:
            raise SystemExit(f"no model {name!r}; choose from {', '.join(MODELS)}")
        sizes = [int(size) for size in arguments.num_nodes.split(",")]
        loaded = Workload.load(MODELS[name], arguments.limit, sizes[0])
        for size in sizes:
            workload = replace(loaded, num_nodes=size)
            (contender,) = make_contenders(workload, "training", arguments)
            contender.run(1.0)
            if arguments.trace:
                path = arguments.trace.with_stem(f"{arguments.trace.stem}_{name}_{size}")
                write_trace(contender, path)
                continue
            found = measure(count(workload), contender, workload, arguments)
            results.setdefault(name, {})[f"{size} atoms"] = found
            print_products(f"{name}, {size} atoms", found, threads)
    if results:
        keep(results, threads, vars(arguments), arguments.json)
        print(f"\nwritten: {arguments.json}")


def count(workload: Workload) -> Operations:
    """Return the operations of one step, the mean over some packs."""
    import torch
    from _schnet_contenders import KEYS
    from _schnet_operations import record

    from torchkiln import Options, training_model
    from torchkiln.graphs import FixedSizeLoader
    from torchkiln.models import MoleculeRegression

    module = MoleculeRegression(workload.model("table"))
    optimizer = torch.optim.Adam(module.parameters())
    program = training_model(module, Options(backend="capture", show_progress=False), optimizer)
    loader = FixedSizeLoader(workload.dataset.store, num_nodes=workload.num_nodes, shuffle=True)
    return record(
        lambda batch: program(*(batch[key] for key in KEYS)), islice(loader, _BATCHES_COUNTED)
    )


def measure(
    operations: Operations,
    contender: Contender,
    workload: Workload,
    arguments: argparse.Namespace,
) -> dict[str, Any]:
    """Let steps and products take turns, and return all figures."""
    from _schnet_operations import layer_product

    from torchkiln.core._progress import progress_bar

    width = workload.size.arguments["hidden_channels"]
    layer = layer_product(operations.products, width)
    timers = {product: product.timer() for product in operations.products}
    each = arguments.seconds / len(timers)
    rounds: list[dict[str, float]] = []
    seconds: dict[Any, list[float]] = {product: [] for product in timers}
    for _ in progress_bar(range(arguments.rounds), desc="Rounds"):
        # The machine's clock changes by the second: sgemm runs right before and right after.
        before = timers[layer](_SGEMM_SHARE * arguments.seconds)
        steps, elapsed = contender.work(arguments.seconds)
        after = timers[layer](_SGEMM_SHARE * arguments.seconds)
        step_s = elapsed / len(steps)
        for product, timer in timers.items():
            seconds[product].append((before + after) / 2 if product == layer else timer(each))
        products_s = sum(n * seconds[product][-1] for product, n in operations.products.items())
        bound_s = operations.flop * seconds[layer][-1] / layer.flop
        rounds.append(
            {
                "step_s": step_s,
                "molecules_per_second": sum(number for number, _ in steps) / elapsed,
                "products_s": products_s,
                "bound_s": bound_s,
                "share_products": products_s / step_s,
                "share_bound": bound_s / step_s,
            }
        )
    medians = {key: statistics.median(row[key] for row in rounds) for key in rounds[0]}
    layer_s = statistics.median(seconds[layer])
    return {
        **medians,
        "product_gflop": operations.product_flop / 1e9,
        "convolution_gflop": {k: v / 1e9 for k, v in operations.convolution_flop.items()},
        "convolution_calls": operations.convolution_calls,
        "layer": str(layer),
        "layer_gflop_per_s": layer.flop / layer_s / 1e9,
        "products": [
            {
                "product": str(product),
                "count": operations.products[product],
                "gflop": product.flop * operations.products[product] / 1e9,
                "gflop_per_s": product.flop / statistics.median(times) / 1e9,
                "ms": 1e3 * operations.products[product] * statistics.median(times),
            }
            for product, times in seconds.items()
        ],
        "rounds": rounds,
    }


def print_products(name: str, found: dict[str, Any], threads: int) -> None:
    from rich.table import Table

    from torchkiln.core._console import make_console

    console = make_console(plain_width=130)
    table = Table(
        title=f"SchNet {name}, one training step, {threads} thread{'s' * (threads > 1)}",
        title_justify="left",
    )
    table.add_column("product (' : transposed)")
    for title in ("count", "GFLOP", "GFLOP/s", "ms"):
        table.add_column(title, justify="right")
    for row in sorted(found["products"], key=lambda row: -row["ms"]):
        table.add_row(
            row["product"],
            f"{row['count']:g}",
            f"{row['gflop']:.3f}",
            f"{row['gflop_per_s']:.1f}",
            f"{row['ms']:.2f}",
        )
    convolutions = sum(found["convolution_gflop"].values())
    total = found["product_gflop"] + convolutions
    table.add_section()
    table.add_row(
        "all products",
        "",
        f"{found['product_gflop']:.3f}",
        f"{found['product_gflop'] / found['products_s']:.1f}",
        f"{1e3 * found['products_s']:.2f}",
    )
    calls = sum(found["convolution_calls"].values())
    table.add_row("convolutions (counted)", f"{calls:g}", f"{convolutions:.3f}", "", "")
    table.add_row(
        "step, live loading included",
        "",
        f"{total:.3f}",
        f"{total / found['step_s']:.1f}",
        f"{1e3 * found['step_s']:.2f}",
    )
    console.print(table)
    console.print(
        f"products: {found['share_products']:.0%} of a step is what its matrix products take alone"
        f"\nbound:    {found['share_bound']:.0%} of a step is what all {total:.2f} GFLOP would take"
        f" at sgemm's {found['layer_gflop_per_s']:.0f} GFLOP/s on {found['layer']}"
        f"\n          ({found['molecules_per_second']:,.0f} molecules/s)",
        highlight=False,
    )


def write_trace(contender: Contender, path: Path) -> None:
    """Profile some steps; print what took longest."""
    from torch.profiler import ProfilerActivity, profile, record_function

    from torchkiln.core import atomic_path

    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        for _ in range(_STEPS_TRACED):
            with record_function("the rest: native code, products, loading"):
                contender.run(0.0)
    with atomic_path(path) as temporary:
        profiler.export_chrome_trace(str(temporary))
    events = sorted(profiler.key_averages(), key=lambda event: -event.self_cpu_time_total)
    total = sum(event.self_cpu_time_total for event in events)
    print(f"{'operator':<50}{'calls/step':>12}{'ms/step':>10}{'share':>8}")
    for event in events[:_ROWS_PRINTED]:
        print(
            f"{event.key[:48]:<50}{event.count / _STEPS_TRACED:>12g}"
            f"{event.self_cpu_time_total / 1e3 / _STEPS_TRACED:>10.2f}"
            f"{event.self_cpu_time_total / total:>8.1%}"
        )
    print(f"written: {path}")


if __name__ == "__main__":
    main()
