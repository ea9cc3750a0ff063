"""Draw docs/images/speed.png, the chart of the README, and print its table, from kept results.

    python docs/make_readme_figure.py

Nothing is measured: the figures are those of benchmarks/results, and docs/benchmarks.md says how
they came about.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from torchkiln.report._theme import LIGHT, Theme, render

ROOT = Path(__file__).resolve().parents[1]
PICTURE = ROOT / "docs" / "images" / "speed.png"
STEPS = {
    "mlp": "multi-layer perceptron",
    "cnn": "small convolutional network",
    "transformer": "transformer",
    "gcn": "graph network (GCN)",
}
SCHNET = "SchNet on QM9, with loading"


def ratios() -> dict[str, dict[str, float]]:
    """Return how many times as fast Torchkiln trains, by workload and by what it is compared with.

    Of single steps the ratio is that of the medians. SchNet's is the median of the ratios of each
    round, to PyG at its best batch size; against torch.compile it is divided by that one's ratio.
    """
    steps = json.loads((ROOT / "benchmarks/results/xeon-2core/step.json").read_text())["results"]
    schnet = json.loads((ROOT / "benchmarks/results/epyc-2core/schnet.json").read_text())
    contenders = schnet["2 threads"]["models"]["A"]["training"]["contenders"]
    found = {}
    for name, title in STEPS.items():
        ours = steps[name]["torchkiln"]["step_us"]
        found[title] = {
            "eager": steps[name]["eager"]["step_us"] / ours,
            "torch.compile": steps[name]["compile"]["step_us"] / ours,
        }
    table, compiled = (
        contenders[name]["ratio"] for name in ("Torchkiln table", "PyG torch.compile (128)")
    )
    found[SCHNET] = {"eager": table, "torch.compile": table / compiled}
    return found


def draw(figure: Any, theme: Theme, found: dict[str, dict[str, float]]) -> None:
    axis = figure.subplots()
    for number, against in enumerate(("eager", "torch.compile")):
        places = [row + 0.2 - 0.4 * number for row in range(len(found))]
        widths = [ratio[against] for ratio in found.values()]
        label = "plain PyTorch or PyG" if against == "eager" else "torch.compile"
        colour = theme.main if against == "eager" else theme.second
        axis.barh(places, widths, height=0.36, color=colour, label=label)
        for place, width in zip(places, widths, strict=True):
            axis.text(width + 0.1, place, f"{width:.1f}x", va="center", color=theme.ink)
    axis.axvline(1, color=theme.muted, linewidth=1)
    axis.set_yticks(range(len(found)), list(found))
    axis.set_xlim(0, 1.1 * max(max(ratio.values()) for ratio in found.values()))
    axis.grid(visible=False, axis="y")
    axis.set_xlabel("how many times as fast Torchkiln trains (2 processor cores)")
    axis.legend(frameon=False, loc="lower right", title="compared with")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--picture", type=Path, default=PICTURE, help="where to draw it")
    picture = parser.parse_args().picture
    found = ratios()
    picture.write_bytes(render(lambda figure, theme: draw(figure, theme, found), LIGHT, (8, 3.2)))
    for title, ratio in found.items():
        print(f"| {title} | {ratio['eager']:.2f}x | {ratio['torch.compile']:.2f}x |")


if __name__ == "__main__":
    main()
