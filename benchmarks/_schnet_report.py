"""Figures of `schnet.py` as a table, as JSON and as a picture."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

import numpy as np
from _results import machine, read_result, write_result
from _schnet_rounds import Outcome

# Ratios are to the best batch size of each: PyG as people get it, and on a processor that is told
# to take denormal numbers for zero.
BASELINES = {"ratio": "PyG eager (", "ratio_flushed": "PyG eager flushed ("}
# Losses of single steps are noise; means over so many molecules are printed.
_WINDOW = 512
# Steps with fewer or more molecules have other losses: they have no place in one picture.
_OTHER_BATCH_SIZES = ("(32)", "(512)")


def summarize(outcomes: list[Outcome]) -> dict[str, Any]:
    """Return medians, ratios to the best PyG of both kinds, and losses, by contender."""
    best = {key: _fastest(outcomes, prefix) for key, prefix in BASELINES.items()}
    # What everybody has seen at least: where losses can be compared.
    common = min(o.curve.molecules[-1] for o in outcomes)
    rows = {}
    for outcome in outcomes:
        molecules, losses = np.array(outcome.curve.molecules), np.array(outcome.curve.losses)
        rows[outcome.name] = {
            "molecules_per_second": statistics.median(outcome.rates),
            "rounds": outcome.rates,
            **{key: base and _ratio(outcome.rates, base.rates) for key, base in best.items()},
            "first_call_s": outcome.first_call_s,
            "molecules": int(molecules[-1]),
            "first_loss": _mean_loss(molecules, losses, _WINDOW),
            "common_loss": _mean_loss(molecules, losses, common),
            "last_loss": _mean_loss(molecules, losses, int(molecules[-1])),
            "curve": _thin(molecules, losses),
        }
    return {
        "baselines": {key: base and base.name for key, base in best.items()},
        "common_molecules": int(common),
        "contenders": rows,
    }


def _fastest(outcomes: list[Outcome], prefix: str) -> Outcome | None:
    chosen = [outcome for outcome in outcomes if outcome.name.startswith(prefix)]
    return max(chosen, key=lambda outcome: statistics.median(outcome.rates), default=None)


def _ratio(rates: list[float], baseline: list[float]) -> float:
    return statistics.median(a / b for a, b in zip(rates, baseline, strict=True))


def _mean_loss(molecules: np.ndarray, losses: np.ndarray, end: int) -> float:
    """Return the mean loss over the last molecules before `end`."""
    sizes = np.diff(molecules, prepend=0)
    chosen = (molecules > end - _WINDOW) & (molecules - sizes < end)
    return float(np.average(losses[chosen], weights=sizes[chosen]))


def _thin(molecules: np.ndarray, losses: np.ndarray, points: int = 60) -> list[list[float]]:
    """Return means over equal parts of the curve, as pairs of molecules and loss."""
    parts = np.array_split(np.arange(len(losses)), min(points, len(losses)))
    return [[int(molecules[part[-1]]), float(losses[part].mean())] for part in parts]


def print_tables(results: dict[str, dict[str, Any]], threads: int) -> None:
    from rich.table import Table

    from torchkiln.core._console import make_console

    console = make_console(plain_width=130)
    for model, modes in results.items():
        for mode, summary in modes.items():
            table = Table(
                title=f"SchNet {model}, {mode}, QM9, {threads} thread{'s' * (threads > 1)}",
                title_justify="left",
                caption="vs PyG eager at its best batch size; flushed: denormal numbers are zero\n"
                f"* mean over the {_WINDOW} molecules before number "
                f"{summary['common_molecules']:,}, which every contender reached",
                caption_justify="left",
            )
            table.add_column("contender")
            titles = ("molecules/s", "vs PyG", "vs flushed", "first call", "first loss")
            for title in (*titles, "at common*"):
                table.add_column(title, justify="right")
            table.add_column("last loss (after molecules)", justify="right")
            for name, row in summary["contenders"].items():
                table.add_row(
                    name,
                    f"{row['molecules_per_second']:,.0f}",
                    *("-" if row[key] is None else f"{row[key]:.2f}x" for key in BASELINES),
                    f"{row['first_call_s']:.1f} s",
                    f"{row['first_loss']:.4f}",
                    f"{row['common_loss']:.4f}",
                    f"{row['last_loss']:.4f} ({row['molecules']:,})",
                )
            console.print(table)


def keep(
    results: dict[str, dict[str, Any]], threads: int, settings: dict[str, Any], path: Path
) -> dict[str, Any]:
    """Write the results beside those of other models, modes and threads; return all of them."""
    everything = read_result(path)
    earlier = everything.get(f"{threads} threads", {}).get("models", {})
    for model, modes in results.items():
        earlier[model] = {**earlier.get(model, {}), **modes}
    everything[f"{threads} threads"] = {
        **machine(),
        "settings": {key: str(value) for key, value in settings.items()},
        "models": earlier,
    }
    write_result(path, everything)
    return everything


def draw(everything: dict[str, Any], path: Path) -> None:
    """Draw ratios and training losses of the run with most threads."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    label = max(everything, key=lambda text: int(text.split()[0]))
    models = everything[label]["models"]
    figure, axes = plt.subplots(
        len(models), 2, figsize=(12, 0.6 + 3.6 * len(models)), squeeze=False, layout="constrained"
    )
    for (bars, curves), (name, modes) in zip(axes, models.items(), strict=True):
        _draw_bars(bars, name, modes, label)
        _draw_curves(curves, name, modes)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def _draw_bars(axis: Any, name: str, modes: dict[str, Any], label: str) -> None:
    names = list(dict.fromkeys(n for mode in modes.values() for n in mode["contenders"]))
    height = 0.8 / len(modes)
    for offset, (mode, summary) in enumerate(modes.items()):
        rows = [summary["contenders"].get(n) for n in names]
        rates = [row["molecules_per_second"] if row else 0 for row in rows]
        places = np.arange(len(names)) + (offset - (len(modes) - 1) / 2) * height
        drawn = axis.barh(places, rates, height, label=mode)
        axis.bar_label(drawn, [_ratios(row) for row in rows], fontsize=8)
    axis.set_yticks(np.arange(len(names)), names, fontsize=8)
    axis.invert_yaxis()
    axis.margins(x=0.22)
    axis.set_xlabel("molecules per second; ratio to the best PyG eager / with denormals flushed")
    axis.set_title(f"SchNet {name} on QM9, {label}")
    axis.legend()


def _ratios(row: dict[str, Any] | None) -> str:
    found = [row[key] for key in BASELINES if row.get(key)] if row else []
    return " " + " / ".join(f"{ratio:.1f}x" for ratio in found)


def _draw_curves(axis: Any, name: str, modes: dict[str, Any]) -> None:
    for contender, row in modes.get("training", {}).get("contenders", {}).items():
        if contender.endswith(_OTHER_BATCH_SIZES):
            continue
        molecules, losses = zip(*row["curve"], strict=True)
        axis.plot(molecules, losses, label=contender, linewidth=1)
    axis.set_xscale("log")
    axis.set_yscale("log")
    axis.set_xlabel("molecules seen")
    axis.set_ylabel("mean squared error, standardised")
    axis.set_title(f"Losses of timed steps, {name}, 128 molecules each")
    if axis.has_data():
        axis.legend(fontsize=7)
