"""Figures of `layers.py` as a table and as a picture."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from _layers_contenders import BATCH_SIZE

# What every layer must reach against PyG eager at its best batch size.
BAR = 1.3


def print_table(results: dict[str, dict[str, Any]], threads: int) -> None:
    from rich.table import Table

    from torchkiln.core._console import make_console

    names = _contenders(results)
    table = Table(
        title=f"Training, graphs per second, {threads} thread{'s' * (threads > 1)}",
        title_justify="left",
        caption="ratios to PyG eager at its best batch size, medians over rounds; losses at a "
        "number of graphs that all had seen, PyG at the same batch size",
        caption_justify="left",
    )
    table.add_column("data")
    table.add_column("model")
    for name in names:
        table.add_column(name, justify="right")
    table.add_column(f"loss, PyG ({BATCH_SIZE}) / Torchkiln", justify="right")
    for data in dict.fromkeys(data for by_data in results.values() for data in by_data):
        for model, by_data in results.items():
            if data in by_data:
                rows = by_data[data]["contenders"]
                table.add_row(data, model, *(_cell(rows.get(n)) for n in names), _losses(rows))
        table.add_section()
    make_console(plain_width=150).print(table)


def _contenders(results: dict[str, dict[str, Any]]) -> list[str]:
    summaries = [summary for by_data in results.values() for summary in by_data.values()]
    return list(dict.fromkeys(name for summary in summaries for name in summary["contenders"]))


def _cell(row: dict[str, Any] | None) -> str:
    if row is None:
        return ""
    ratio = "" if row["ratio"] is None else f"  {row['ratio']:.2f}x"
    return f"{row['molecules_per_second']:,.0f}{ratio}"


def _losses(rows: dict[str, Any]) -> str:
    # At as many graphs a step: other batch sizes have done other numbers of steps.
    names = (f"PyG eager ({BATCH_SIZE})", "Torchkiln")
    return " / ".join(f"{rows[n]['common_loss']:.3f}" if n in rows else "-" for n in names)


def draw(everything: dict[str, Any], path: Path) -> None:
    """Draw the ratio of Torchkiln to PyG eager, by layer, data and number of threads."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    runs = sorted(everything.items(), key=lambda item: int(item[0].split()[0]))
    data = list(dict.fromkeys(d for _, run in runs for m in run["models"].values() for d in m))
    figure, axes = plt.subplots(
        1, len(data), figsize=(5.5 * len(data), 4), squeeze=False, sharey=True, layout="constrained"
    )
    for axis, name in zip(axes[0], data, strict=True):
        _draw_bars(axis, name, runs)
    axes[0][0].set_ylabel("training speed, PyG eager = 1")
    axes[0][0].legend(fontsize=8)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def _draw_bars(axis: Any, data: str, runs: list[tuple[str, Any]]) -> None:
    models = [m for m in runs[-1][1]["models"] if data in runs[-1][1]["models"][m]]
    bars = [(label, run, name) for label, run in runs for name in _shown(run)]
    width = 0.85 / len(bars)
    for offset, (label, run, name) in enumerate(bars):
        rows = [run["models"].get(m, {}).get(data, {}).get("contenders", {}) for m in models]
        ratios = [row.get(name, {}).get("ratio") or 0.0 for row in rows]
        places = np.arange(len(models)) + (offset - (len(bars) - 1) / 2) * width
        drawn = axis.bar(
            places, ratios, width, label=f"{name}, {label.replace('1 threads', '1 thread')}"
        )
        axis.bar_label(drawn, [f"{r:.1f}" if r else "" for r in ratios], fontsize=7)
    axis.axhline(1.0, color="black", linewidth=1)
    axis.axhline(BAR, color="gray", linewidth=1, linestyle="--")
    axis.set_xticks(np.arange(len(models)), models, fontsize=8)
    axis.set_title(f"{data}: packed, compiled")


def _shown(run: dict[str, Any]) -> list[str]:
    return [name for name in _contenders(run["models"]) if name.startswith("Torchkiln")]
