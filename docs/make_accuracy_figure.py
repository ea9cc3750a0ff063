"""Draw docs/images/accuracy.png and print the table of docs/accuracy.md from finished runs.

    python docs/make_accuracy_figure.py runs/u0 runs/gap

Each argument is the folder of a run of bench.py. The published figures stand beside the curves.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from torchkiln.report import RunResult, load_result
from torchkiln.report._theme import LIGHT, Theme, render

PICTURE = Path(__file__).parent / "images" / "accuracy.png"
# Mean absolute errors in meV after full training on 110,000 molecules: SchNet's own paper (2018),
# and the range of later re-runs, as issue 4 of this project quotes them.
PUBLISHED_MEV = {"U0": (12.0, 14.0), "gap": (63.0, 74.0)}


def curve(result: RunResult) -> tuple[list[float], list[float]]:
    """Return minutes of training and validation errors in meV, epoch by epoch."""
    minutes, errors, passed = [], [], 0.0
    for epoch in result.epochs:
        passed += epoch.seconds / 60
        if epoch.validation_mae is not None:
            minutes.append(passed)
            errors.append(1000 * epoch.validation_mae)
    return minutes, errors


def draw(figure: Any, theme: Theme, runs: list[RunResult]) -> None:
    for axis, run in zip(figure.subplots(1, len(runs), squeeze=False)[0], runs, strict=True):
        target = run.dataset["target"]
        minutes, errors = curve(run)
        axis.plot(minutes, errors, "o-", color=theme.main, label=f"here: {errors[-1]:.1f} meV")
        low, high = PUBLISHED_MEV[target]
        axis.axhspan(low, high, color=theme.third, alpha=0.35)
        axis.plot([], [], color=theme.third, linewidth=8, alpha=0.35, label="published, converged")
        axis.set_yscale("log")
        axis.yaxis.set_major_formatter("{x:g}")
        axis.yaxis.set_minor_formatter("{x:g}")
        axis.set_title(f"{target}: validation error")
        axis.set_xlabel(f"minutes of training, {run.machine['threads']} thread")
        axis.set_ylabel("MAE (meV)")
        axis.legend(frameon=False)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs", type=Path, nargs="+", help="folders of runs of bench.py")
    parser.add_argument("--picture", type=Path, default=PICTURE, help="where to draw it")
    arguments = parser.parse_args()
    runs = [load_result(folder) for folder in arguments.runs]
    picture = render(lambda figure, theme: draw(figure, theme, runs), LIGHT, (9.5, 3.8))
    arguments.picture.parent.mkdir(exist_ok=True)
    arguments.picture.write_bytes(picture)
    for run in runs:
        minutes, errors = curve(run)
        rows = zip(range(1, len(errors) + 1), minutes, errors, strict=True)
        print(f"\n| epoch | minutes | MAE of {run.dataset['target']}, meV |\n|--:|--:|--:|")
        print("\n".join(f"| {n} | {passed:.1f} | {error:.1f} |" for n, passed, error in rows))
        if run.test is not None:
            print(f"test MAE {1000 * run.test.mae:.1f} meV, RMSE {1000 * run.test.rmse:.1f} meV")


if __name__ == "__main__":
    main()
