"""Does a quick run learn what it is asked? Test errors of all targets against least squares.

    python benchmarks/targets.py [--targets U0 gap water] [--limit 30000] [--num_epochs 5]

Trains SchNet as `configs/qm9_quick.yml` says, once for each of the 19 targets of QM9, and once on
water clusters as `configs/water_packed.yml` says. Nothing but the target is set: references, the
form per atom and the readout follow from it. Beside the error stands that of least squares on the
number of atoms of each element, fitted to the same training molecules: what a formula alone tells.

Ratios are written to benchmarks/results/<machine>/targets.json. Those above the bar are marked;
the ones that are known to stay above it are listed here with the reason.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from _results import machine, result_path, write_result
from _small import parse_arguments

from torchkiln.core._threads import pin_threads

ROOT = Path(__file__).resolve().parents[1]
WATER = "water"
QM9 = ["mu", "alpha", "homo", "lumo", "gap", "r2", "zpve", "U0", "U", "H", "G", "Cv"]
QM9 += ["U0_atom", "U_atom", "H_atom", "G_atom", "A", "B", "C"]
# A model must be so many times better than least squares, as a ratio of errors.
BAR, WATER_BAR = 0.7, 1 / 3
EXCEPTIONS: dict[str, str] = {}


def read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--targets", nargs="+", choices=[*QM9, WATER], default=[*QM9, WATER])
    parser.add_argument("--limit", type=int, default=30_000, help="molecules of QM9, before splits")
    parser.add_argument("--num_epochs", type=int, default=5, help="on QM9")
    parser.add_argument("--water_epochs", type=int, help="default: as the config says")
    parser.add_argument("--threads", type=int, help="default: one for each core")
    parser.add_argument("--backend", choices=["inductor", "capture", "eager"])
    parser.add_argument("--json", type=Path, default=result_path("targets"))
    return parse_arguments(
        parser, targets=["gap"], limit=60, num_epochs=1, water_epochs=1, backend="eager"
    )


def flags_for(target: str, arguments: argparse.Namespace) -> list[str]:
    backend = ["--backend", arguments.backend] if arguments.backend else []
    if target == WATER:
        epochs = arguments.water_epochs
        shorter = ["--num_epochs", str(epochs)] if epochs else []
        return ["--config", str(ROOT / "configs/water_packed.yml"), *shorter, *backend]
    return [
        *("--config", str(ROOT / "configs/qm9_quick.yml"), "--target", target),
        *("--limit", str(arguments.limit), "--num_epochs", str(arguments.num_epochs)),
        *backend,
    ]


def measure(target: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """Train once; return the errors, and in which form the target was learnt."""
    from torchkiln.apps.schnet._arguments import read_settings
    from torchkiln.apps.schnet._experiment import load_dataset, make_job
    from torchkiln.apps.schnet._program_options import training_options
    from torchkiln.apps.schnet._trainer import train

    settings = read_settings(flags_for(target, arguments))
    dataset = load_dataset(settings)
    job = make_job(settings, dataset, training_options(settings))
    result = train(job)
    assert result.test is not None, result.note
    assert result.test.baseline_mae is not None
    ratio = result.test.mae / result.test.baseline_mae
    return {
        "target": target,
        "unit": dataset.unit,
        "kind": dataset.kind,
        "form": str(dataset.transform),
        "readout": job.model_arguments["readout"],
        "molecules": len(dataset.splits["train"]),
        "epochs": len(result.epochs),
        "best_epoch": result.best_epoch,
        "test_mae": result.test.mae,
        "least_squares_mae": result.test.baseline_mae,
        "ratio": ratio,
        "bar": WATER_BAR if target == WATER else BAR,
        "seconds": sum(epoch.seconds for epoch in result.epochs),
    }


def print_table(rows: list[dict[str, Any]]) -> None:
    from rich.table import Table

    from torchkiln.core._console import make_console

    table = Table(title="Test errors of quick runs against least squares on element counts")
    for name in ("target", "kind", "readout"):
        table.add_column(name)
    for name in ("test MAE", "least squares", "ratio", "bar"):
        table.add_column(name, justify="right")
    table.add_column("unit")
    for row in rows:
        missed = row["ratio"] > row["bar"]
        mark = " *" if missed and row["target"] in EXCEPTIONS else " !" if missed else ""
        table.add_row(
            *(row["target"], row["kind"], row["readout"]),
            *(f"{row[name]:.4g}" for name in ("test_mae", "least_squares_mae")),
            *(f"{row['ratio']:.3f}{mark}", f"{row['bar']:.2f}", row["unit"]),
        )
    make_console().print(table)
    for target, reason in EXCEPTIONS.items():
        print(f"* {target}: {reason}")


def main() -> None:
    arguments = read_arguments()
    threads = pin_threads(arguments.threads)
    rows = []
    for target in arguments.targets:
        rows.append(measure(target, arguments))
        row = rows[-1]
        print(
            f"{target}: {row['test_mae']:.4g} {row['unit']}, ratio {row['ratio']:.3f}", flush=True
        )
    print_table(rows)
    settings = {"limit": arguments.limit, "num_epochs": arguments.num_epochs, "threads": threads}
    record = {"machine": machine(), "settings": settings, "exceptions": EXCEPTIONS, "targets": rows}
    write_result(arguments.json, record)
    print(f"written: {arguments.json}")


if __name__ == "__main__":
    main()
