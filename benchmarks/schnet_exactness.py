"""How exact SchNet is with tables of filters: against float64, on trained weights, beside PyG.

    python benchmarks/schnet_exactness.py [--models A,B] [--checkpoint A=DIR,B=DIR]

The truth is PyG's SchNet, evaluated in float64 with exact filters on distances (for forces: on
coordinates) that are rounded to float32 beforehand. Beside it stand PyG in float32, Torchkiln with
exact filters, and Torchkiln with tables of several sizes; the default also as the compiled training
step itself. Errors:

energies   difference by the standard deviation of energies: root mean square, and the largest
gradient   of the mean squared error by all weights, relative L2; root mean square over batches
forces     derivatives of energies by coordinates, relative L2

A checkpoint is what bench.py writes with --checkpoint (the folder of the model); without one, a
short run on QM9 is trained first. Results go to benchmarks/results/<machine>/schnet_exactness.json,
the picture to docs/images/schnet_exactness.png.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path
from typing import Any

from _results import machine, result_path, write_result
from _small import parse_arguments

from torchkiln.core._threads import pin_threads

ROOT = Path(__file__).resolve().parents[1]
BASELINE = "PyG float32"
# What the project asks of the default table, relative to PyG in float32.
BARS = {"energy_rms": 2.0, "energy_max": 2.0, "gradient": 5.0}
_TITLES = {
    "energy_rms": "energies, rms",
    "energy_max": "energies, largest",
    "gradient": "gradient",
    "forces": "forces",
}


def read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", default="A,B", help="A: 128/6/50, 10 A; B: 100/4/25, 6 A, k=28")
    parser.add_argument("--checkpoint", default="", help="folders of trained models: A=DIR,B=DIR")
    parser.add_argument("--epochs", type=int, default=3, help="of training where none is given")
    parser.add_argument("--molecules", type=int, help="to train on; default: all of QM9")
    parser.add_argument("--folder", type=Path, help="of the training; default: data directory")
    parser.add_argument("--knots", default="256,512,1024,2048", help="sizes beside the default")
    parser.add_argument("--batches", type=int, default=4)
    parser.add_argument("--batch_size", type=int, default=64, help="molecules")
    parser.add_argument("--skip_compiled", action="store_true", help="saves a minute of compiling")
    parser.add_argument("--json", type=Path, default=result_path("schnet_exactness"))
    parser.add_argument("--plot", type=Path, default=ROOT / "docs/images/schnet_exactness.png")
    return parse_arguments(parser, epochs=1, molecules=200, knots="64", batches=1, batch_size=4)


def main() -> None:
    arguments = read_arguments()
    # Denormal numbers are flushed in the main thread only, so there is only that one.
    pin_threads(1)
    import torch

    from torchkiln.apps.schnet._trained import load_trained

    # PyG's Gaussians underflow to them. They are below 1e-37: it is for the time, not for errors.
    torch.set_flush_denormal(True)
    folders = dict(part.split("=", 1) for part in arguments.checkpoint.split(",") if part)
    models = {}
    for name in arguments.models.split(","):
        folder = Path(folders[name]) if name in folders else train(name, arguments)
        models[name] = compare(load_trained(folder), arguments)
        print_errors(name, models[name])
    settings = {key: str(value) for key, value in vars(arguments).items()}
    everything = {**machine(), "settings": settings, "bars": BARS, "models": models}
    write_result(arguments.json, everything)
    draw(models, arguments.plot)
    print(f"\nwritten: {arguments.json} and {arguments.plot}")


def train(name: str, arguments: argparse.Namespace) -> Path:
    """Train model `name` on QM9 for some epochs, and return the folder of its checkpoint."""
    from _schnet_contenders import MODELS

    from torchkiln.datasets._array_cache import data_dir

    folder = arguments.folder or data_dir()
    size = MODELS[name]
    sizes = size.arguments
    flags = {
        "config": ROOT / "configs/qm9_reference.yml",
        "model.num_features": sizes["hidden_channels"],
        "model.num_filters": sizes["num_filters"],
        "model.num_interactions": sizes["num_interactions"],
        "model.num_gaussians": sizes["num_gaussians"],
        "dataset_factory.k": "null" if size.k is None else size.k,
        "dataset_factory.cutoff": sizes["cutoff"],
        "num_epochs": arguments.epochs,
        "learning_rate_decay": 0.5,
        "model_name": f"exactness_{name}",
        "checkpoint_dir": folder / "benchmark_checkpoints",
        "output_dir": folder / "benchmark_runs",
    }
    if arguments.molecules is not None:
        flags |= {"limit": arguments.molecules, "splits": "80/10/10"}
    words = [f"--{flag}={value}" for flag, value in flags.items()]
    subprocess.run([sys.executable, str(ROOT / "bench.py"), *words], check=True)
    return flags["checkpoint_dir"] / flags["model_name"]


def compare(trained: Any, arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the errors of all forms of a trained model, by name."""
    import torch
    from _schnet_errors import compiled, make_samples, measure, ours, pyg

    from torchkiln.core._progress import progress_bar

    default = trained.model.num_knots
    sizes = sorted({default, *map(int, arguments.knots.split(","))})
    table = ours(trained, "table", default)
    forms = {BASELINE: pyg(trained, torch.float32), "Torchkiln exact": ours(trained, "exact")}
    forms |= {f"Torchkiln table {size}": ours(trained, "table", size) for size in sizes}
    if not arguments.skip_compiled:
        forms[f"Torchkiln table {default}, compiled"] = compiled(trained, "table", table)
    samples = make_samples(trained, arguments.batches, arguments.batch_size)
    exact = pyg(trained, torch.float64)
    truth = [exact(sample) for sample in progress_bar(samples, desc="In float64")]
    deviation = float(torch.cat([values.energies for values in truth]).std())
    errors = {
        name: measure(samples, truth, evaluate, deviation)
        for name, evaluate in progress_bar(forms.items(), desc="In float32")
    }
    epochs = trained.facts["epochs"]
    return {
        "default_knots": default,
        "knots": sizes,
        "molecules": arguments.batches * arguments.batch_size,
        "epochs": len(epochs),
        "validation_mae_ev": epochs[-1]["validation_mae"],
        "table_error": trained.model.table_error(),
        "errors": errors,
        "ratios": {
            name: {key: row[key] / errors[BASELINE][key] for key in _TITLES}
            for name, row in errors.items()
        },
    }


def print_errors(name: str, found: dict[str, Any]) -> None:
    from rich.table import Table

    from torchkiln.core._console import make_console

    console = make_console(plain_width=130)
    table = Table(
        title=f"SchNet {name}, errors against float64 (and by those of {BASELINE})",
        title_justify="left",
        caption=f"{found['molecules']} molecules of QM9; weights after {found['epochs']} epochs, "
        f"validation error {1e3 * found['validation_mae_ev']:.0f} meV",
        caption_justify="left",
    )
    table.add_column("")
    for title in _TITLES.values():
        table.add_column(title, justify="right")
    for form, errors in found["errors"].items():
        ratios = found["ratios"][form]
        table.add_row(form, *(f"{errors[key]:.1e} ({ratios[key]:.2f}x)" for key in _TITLES))
    console.print(table)
    for form in (f"Torchkiln table {found['default_knots']}{end}" for end in ("", ", compiled")):
        for key, bar in BARS.items():
            ratio = found["ratios"].get(form, {}).get(key, 0.0)
            if ratio > bar:
                console.print(f"MISSED: {_TITLES[key]} of {form}: {ratio:.2f}x, at most {bar}x")


def draw(models: dict[str, Any], path: Path) -> None:
    """Draw errors against the number of knots, with PyG's float32 as a line."""
    from torchkiln.report._theme import LIGHT, render

    shown = ("energy_rms", "gradient", "forces")

    def paint(figure: Any, theme: Any) -> None:
        grid = figure.subplots(1, len(models), squeeze=False)[0]
        colours = (theme.main, theme.second, theme.third)
        for axis, (name, found) in zip(grid, models.items(), strict=True):
            for key, colour in zip(shown, colours, strict=True):
                sizes = found["knots"]
                rows = [found["errors"][f"Torchkiln table {size}"][key] for size in sizes]
                axis.plot(sizes, rows, "o-", color=colour, label=_TITLES[key])
                axis.axhline(found["errors"][BASELINE][key], color=colour, linestyle=":")
            axis.plot([], [], ":", color=theme.ink, label=f"{BASELINE}, exact filters")
            axis.axvline(found["default_knots"], color=theme.muted, linewidth=0.8)
            axis.set_xscale("log", base=2)
            axis.set_yscale("log")
            # The default of B is so close to 1,024 that their labels would overlap.
            ticks = [size for size in found["knots"] if size & (size - 1) == 0]
            axis.set_xticks(ticks, [f"{size:,}" for size in ticks])
            axis.set_xlabel(f"knots of the table (line: default, {found['default_knots']:,})")
            axis.set_ylabel("relative error against float64")
            axis.set_title(f"SchNet {name}, trained")
        grid[0].legend(frameon=False, fontsize=8)

    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(render(paint, LIGHT, (5.2 * len(models), 4.0)))


if __name__ == "__main__":
    main()
