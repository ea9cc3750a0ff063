"""`torchkiln plan`: how well graphs fill batches of a fixed size, as a table and a picture."""

from __future__ import annotations

import math
import sys
import time
import warnings
from pathlib import Path

import numpy as np

from torchkiln.commands._plan_picture import draw_plan
from torchkiln.commands._plan_report import PlanReport
from torchkiln.commands._plan_sizes import Sizes, read_sizes
from torchkiln.core import OptionsError, to_choice
from torchkiln.core._console import make_console
from torchkiln.packing import ALGORITHMS, PackPlan, choose_slots, pack

_DEFAULT_NODES = 512
_SEED = 0
_PICTURES = (".png", ".svg", ".pdf")
# The curve over limits plans a sample: a person sees no difference.
_CURVE_GRAPHS = 30_000
_CURVE_POINTS = 9


def run_plan(
    dataset: str | None,
    sizes: Path | None,
    nodes: int | None,
    graphs: int | None,
    edges: int | None,
    cutoff_angstrom: float | None,
    algorithm: str,
    picture: Path | None,
    save: Path | None,
) -> None:
    """Plan with every algorithm, print a table, and write what was asked for."""
    to_choice(ALGORITHMS, algorithm, "algorithm")
    if picture is not None and picture.suffix not in _PICTURES:
        raise OptionsError(f"cannot draw {picture}; end its name in {', '.join(_PICTURES)}")
    title, found = read_sizes(dataset, sizes, cutoff_angstrom)
    if not found or not len(next(iter(found.values()))):
        raise OptionsError("there are no graphs to plan")
    if nodes is None and graphs is None:
        nodes = _DEFAULT_NODES
    decided = {} if edges is None else {"edges": edges}
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always", UserWarning)
        slots = choose_slots(found, nodes=nodes, graphs=graphs, slots=decided)
    for warning in said:  # without the line of Python that it would point at
        sys.stderr.write(f"note: {warning.message}\n")
    _compile(found, slots)
    plans: dict[str, PackPlan] = {}
    seconds: dict[str, float] = {}
    for name in ALGORITHMS:
        start = time.perf_counter()
        plans[name] = pack(found, slots, algorithm=name, seed=_SEED)
        seconds[name] = time.perf_counter() - start
    padded = {axis: float(column.mean()) / max(column.max(), 1) for axis, column in found.items()}
    curve = _efficiency_curve(found, slots, algorithm) if picture is not None else []
    report = PlanReport(title, found, plans, seconds, algorithm, padded, curve)
    _print(report)
    try:
        if save is not None:
            report.plan.save(save)
            sys.stderr.write(f"wrote {save}\n")
        if picture is not None:
            draw_plan(report, picture)
            sys.stderr.write(f"wrote {picture}\n")
    except OSError as error:
        raise OptionsError(
            f"cannot write what was asked for ({error}); name another file"
        ) from error


def _compile(sizes: Sizes, slots: dict[str, int]) -> None:
    """Let Numba compile, or load what it compiled before, outside of the times that are shown."""
    for name in ALGORITHMS:
        pack({axis: column[:1] for axis, column in sizes.items()}, slots, algorithm=name)


def _efficiency_curve(
    sizes: Sizes, slots: dict[str, int], algorithm: str
) -> list[tuple[int, dict[str, float]]]:
    """Return how full batches of other sizes would be, from hardly one graph up to 8 times."""
    first = next(iter(sizes))
    count = len(sizes[first])
    chosen = np.random.default_rng(_SEED).permutation(count)[:_CURVE_GRAPHS]
    sample = {axis: column[chosen] for axis, column in sizes.items()}
    smallest = max(int(column.max()) / max(column.mean(), 1e-9) for column in sample.values())
    here = (slots[first] - 1) / max(sample[first].mean(), 1e-9)
    points = np.geomspace(max(smallest, 1.0), max(8 * here, 2 * smallest), _CURVE_POINTS)
    # Beyond a tenth of the sample in a batch, the last one of the sample would decide.
    points = points[points <= max(len(chosen) / 10, smallest)]
    curve = []
    for num_graphs in points:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # about giants, said once already
            tried = choose_slots(sample, graphs=max(round(num_graphs), 1))
        plan = pack(sample, tried, algorithm=algorithm, seed=_SEED)  # type: ignore[arg-type]
        curve.append((tried[first], {axis: plan.efficiency[axis] for axis in sizes}))
    return curve


def _print(report: PlanReport) -> None:
    from rich.table import Table

    plan = report.plan
    table = Table(title=f"{report.title}: share of slots that hold real data", title_justify="left")
    table.add_column("algorithm", min_width=len("algorithm"))
    table.add_column("batches", justify="right")
    for axis in report.sizes:
        table.add_column(axis, justify="right")
    table.add_column("graphs", justify="right")
    table.add_column("time", justify="right")
    for name, made in report.plans.items():
        cells = [name, f"{len(made):,}"]
        cells += [f"{made.efficiency[axis]:.2%}" for axis in (*report.sizes, "graphs")]
        cells.append(f"{report.seconds[name] * 1e3:,.0f} ms")
        table.add_row(*cells, style="bold" if name == report.chosen else "")
    table.add_row(
        "none: pad each graph to the largest",
        f"{math.ceil(plan.num_graphs / round(plan.num_graphs / len(plan))):,}",
        *[f"{share:.2%}" for share in report.padded.values()],
        "",
        "",
    )
    console = make_console()
    console.print(table)
    console.print(
        f"{plan.num_graphs:,} graphs; every batch has "
        + ", ".join(f"{size:,} {axis}" for axis, size in plan.slots.items())
        + f" (one of each is filler) and holds {plan.num_graphs / len(plan):.1f} graphs on average."
    )
    console.print(
        "In a program: " + f"pack(sizes, {plan.slots}, algorithm={report.chosen!r}, seed=...)",
        highlight=False,
    )
