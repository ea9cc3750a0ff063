"""Exact and interpolated filters learn alike: validation errors epoch by epoch, for some seeds.

    python benchmarks/schnet_curves.py [--molecules 20000] [--epochs 6] [--seeds 3] [--threads N]
                                       [--backend eager] [--redraw]

Trains SchNet of model B's size (100 features, 4 blocks, 25 Gaussians, 6 angstrom) on U0 of QM9 by
`bench.py`, with `configs/qm9_quick.yml`, once with `--filter exact` and once with `--filter table`
for each seed: same initial weights, same batches, same order. What a difference is worth is told by
another seed, which draws other weights and another order. Runs are kept until all are done, so a
broken-off comparison goes on where it was. Writes benchmarks/results/<machine>/schnet_curves.json
and docs/images/schnet_curves.png; `--redraw` only draws.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

from _results import read_result, result_path, write_result
from _small import parse_arguments

ROOT = Path(__file__).resolve().parents[1]
PICTURE = ROOT / "docs/images/schnet_curves.png"
FORMS = ("exact", "table")
SIZES = {
    "model.num_features": 100,
    "model.num_filters": 100,
    "model.num_interactions": 4,
    "model.num_gaussians": 25,
    "dataset_factory.k": 28,
    "dataset_factory.cutoff": 6.0,
}


def read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--molecules", type=int, default=20_000, help="four fifths are trained on")
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--threads", type=int, help="default: one for each core")
    parser.add_argument("--backend", default="inductor", help="eager: nothing is compiled")
    parser.add_argument("--folder", type=Path, default=ROOT / "runs/schnet_curves")
    parser.add_argument("--redraw", action="store_true", help="only draw what was measured")
    parser.add_argument("--json", type=Path, default=result_path("schnet_curves"))
    parser.add_argument("--plot", type=Path, default=PICTURE)
    return parse_arguments(parser, molecules=100, epochs=1, seeds=1, backend="eager")


def train(form: str, seed: int, arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the record of a run of bench.py; that of an earlier one, if it is finished."""
    settings = {
        **SIZES,
        "model.filter": form,
        "bench.seed": seed,
        "bench.backend": arguments.backend,
        "limit": arguments.molecules,
        "num_epochs": arguments.epochs,
    }
    name = f"{form}-{seed}-{arguments.molecules}-{arguments.epochs}"
    path = arguments.folder / name / "results.json"
    if not _is_finished(path):
        command = [sys.executable, "bench.py", "--config", "configs/qm9_quick.yml"]
        for key, value in settings.items():
            command += [f"--{key}", str(value)]
        command += ["--run_name", name, "--output_dir", str(arguments.folder)]
        if arguments.threads:
            command += ["--threads", str(arguments.threads)]
        subprocess.run(command, cwd=ROOT, check=True)
        if not _is_finished(path):
            raise SystemExit(f"{path} does not tell of a finished run")
    return json.loads(path.read_text())


def _is_finished(path: Path) -> bool:
    return path.exists() and json.loads(path.read_text())["status"] == "finished"


def summarize(runs: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """Return errors in meV by form, seed and epoch, and both kinds of differences."""
    errors = {
        form: [[1000 * epoch["validation_mae"] for epoch in run["epochs"]] for run in same]
        for form, same in runs.items()
    }
    by_form = [
        [table - exact for table, exact in zip(*pair, strict=True)]
        for pair in zip(errors["table"], errors["exact"], strict=True)
    ]
    by_epoch = zip(*errors["exact"], strict=True)
    return {
        "validation_mae_mev": errors,
        "table_minus_exact_mev": by_form,
        "deviation_between_seeds_mev": [
            statistics.stdev(same) if len(same) > 1 else None for same in by_epoch
        ],
        "test_mae_mev": {
            form: [1000 * run["test"]["mae"] for run in same] for form, same in runs.items()
        },
        "table_error": [run["model"]["table_error"] for run in runs["table"]],
        "molecules_per_s": {
            form: [run["molecules_per_s"] for run in same] for form, same in runs.items()
        },
    }


def print_table(record: dict[str, Any]) -> None:
    errors = record["validation_mae_mev"]
    print(f"\n{'validation MAE, meV':>20}{'exact':>9}{'table':>9}{'difference':>12}", end="")
    print(f"{'between seeds':>15}")
    for epoch, deviation in enumerate(record["deviation_between_seeds_mev"]):
        exact, table = (statistics.mean(e[epoch] for e in errors[form]) for form in FORMS)
        apart = statistics.mean(row[epoch] for row in record["table_minus_exact_mev"])
        noise = "-" if deviation is None else f"{deviation:.2f}"
        print(f"{f'epoch {epoch + 1}':>20}{exact:>9.2f}{table:>9.2f}{apart:>+12.2f}{noise:>15}")


def draw(record: dict[str, Any], path: Path) -> None:
    """Draw the curves, and below them how far each pair is apart."""
    from torchkiln.report._theme import LIGHT, Theme, render

    def fill(figure: Any, theme: Theme) -> None:
        above, below = figure.subplots(2, 1, sharex=True, height_ratios=(2, 1))
        errors = record["validation_mae_mev"]
        epochs = range(1, len(errors["exact"][0]) + 1)
        looks = {"exact": (theme.third, "o-", 5.0), "table": (theme.main, "x--", 1.5)}
        for form, (color, shape, width) in looks.items():
            for seed, curve in enumerate(errors[form]):
                label = f"{form} filters" if seed == 0 else None
                above.plot(epochs, curve, shape, color=color, linewidth=width, label=label)
        above.set_yscale("log")
        above.yaxis.set_major_formatter("{x:g}")
        above.yaxis.set_minor_formatter("{x:g}")
        above.set_ylabel("validation MAE (meV)")
        above.set_title(f"U0 of QM9, {record['settings']['molecules']:,} molecules")
        above.legend(frameon=False)
        noise = [deviation or 0.0 for deviation in record["deviation_between_seeds_mev"]]
        below.fill_between(epochs, [-n for n in noise], noise, color=theme.third, alpha=0.35)
        below.plot([], [], color=theme.third, linewidth=8, alpha=0.35, label="seeds, one deviation")
        for seed, row in enumerate(record["table_minus_exact_mev"]):
            label = "table minus exact, same seed" if seed == 0 else None
            below.plot(epochs, row, "x-", color=theme.main, label=label)
        below.set_xlabel("epoch")
        below.set_ylabel("difference (meV)")
        below.legend(frameon=False)

    path.parent.mkdir(exist_ok=True)
    path.write_bytes(render(fill, LIGHT, (7.5, 6.0)))


def main() -> None:
    arguments = read_arguments()
    if arguments.redraw:
        record = read_result(arguments.json)
    else:
        runs: dict[str, list[dict[str, Any]]] = {form: [] for form in FORMS}
        for seed in range(arguments.seeds):
            for form in FORMS:
                runs[form].append(train(form, seed, arguments))
        machine = runs["exact"][0]["machine"]
        chosen = {
            key: getattr(arguments, key) for key in ("molecules", "epochs", "seeds", "backend")
        }
        record = {"machine": machine, "settings": {**SIZES, **chosen}, **summarize(runs)}
        write_result(arguments.json, record)
    print_table(record)
    draw(record, arguments.plot)
    print(f"\nresults: {arguments.json}, picture: {arguments.plot}")


if __name__ == "__main__":
    main()
