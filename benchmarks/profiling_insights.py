"""Do the insights of a profile keep their promises? Causes made on purpose, and their remedies.

    python benchmarks/profiling_insights.py [--rounds 5] [--steps 120] [--threads N]

Three programs are held up on purpose: by a dataset that sleeps, by Python around a tiny model, and
by another process that computes on the same cores. Their profiles must name the cause. Then the
remedy is applied, and the time of a step with and without it is measured turn by turn: the gain
must be at least half of what was promised. Prints a table and writes
benchmarks/results/<machine>/profiling_insights.json.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from _results import machine, result_path, write_result
from _small import parse_arguments

from torchkiln.core._threads import on_all_cores, pin_threads

# The first calls of a program that is watched are not counted, and enough others make a report.
REPORT_CALLS = 60
BUSY = "import time\nend = time.monotonic() + 600\nwhile time.monotonic() < end:\n    pass\n"


def read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=120, help="of each contender in a round")
    parser.add_argument("--threads", type=int, help="default: one for each core")
    parser.add_argument("--json", type=Path, default=result_path("profiling_insights"))
    return parse_arguments(parser, rounds=1, steps=32)


def make_program(width: int, depth: int, **settings: Any) -> Any:
    """Return a program that trains a stack of layers; its loss comes last."""
    import torch

    from torchkiln import Options, training_model
    from torchkiln.apps.steps._workloads import DeepMLP

    torch.manual_seed(0)
    module = DeepMLP(width, depth)
    options = Options(show_progress=False, **settings)
    return training_model(module, options, torch.optim.SGD(module.parameters(), lr=1e-3))


def us_per_step(batches: Iterable[Any], program: Any, skip: int = 5) -> float:
    """Train on all batches and return the microseconds between two calls, a loader's included."""
    iterator: Iterator[Any] = iter(batches)
    for _ in range(skip):
        program(*next(iterator))
    start, count = time.perf_counter_ns(), 0
    for batch in iterator:
        program(*batch)
        count += 1
    return (time.perf_counter_ns() - start) / count / 1e3 / program.options.device_iterations


def compare(before: Callable[[], float], after: Callable[[], float], rounds: int) -> dict[str, Any]:
    """Measure both turn by turn."""
    pairs = [(before(), after()) for _ in range(rounds)]
    slow, fast = zip(*pairs, strict=True)
    return {
        "before_us": statistics.median(slow),
        "after_us": statistics.median(fast),
        "gain_us": statistics.median(a - b for a, b in pairs),
        "rounds": [list(pair) for pair in pairs],
    }


def insight_of(profile: Any, kind: str) -> Any:
    for insight in profile.insights:
        if insight.kind == kind:
            return insight
    told = ", ".join(insight.kind for insight in profile.insights) or "nothing"
    print(f"note: the profile does not tell of {kind!r}; it tells of {told}", file=sys.stderr)
    return None


def summarize(insight: Any, measured: dict[str, Any]) -> dict[str, Any]:
    promised = None if insight is None else insight.gain_us
    return {
        "found": insight is not None,
        "text": "" if insight is None else insight.text,
        "remedy": "" if insight is None else insight.remedy,
        "promised_us": promised,
        "kept": None if not promised else measured["gain_us"] / promised,
        **measured,
    }


# -- causes -------------------------------------------------------------------------------------


def slow_data(args: argparse.Namespace) -> dict[str, Any]:
    """Each batch takes about as long as a step."""
    import torch
    from torch.utils.data import Dataset

    from torchkiln.data import DataLoader
    from torchkiln.profiling import load_profile

    batch_size, width = 32, 256
    program = make_program(width, 20)
    batch = torch.randn(batch_size, width)
    item_s = us_per_step([(batch, batch)] * 30, program) / 1e6 / batch_size

    class Sleeping(Dataset):
        def __init__(self, count: int) -> None:
            self._count = count

        def __len__(self) -> int:
            return self._count

        def __getitem__(self, index: int) -> Any:
            time.sleep(item_s)
            return batch[0], batch[0]

    with tempfile.TemporaryDirectory() as folder:
        watched = make_program(width, 20, profile_dir=folder)
        loader = DataLoader(watched.options, Sleeping(REPORT_CALLS * batch_size), batch_size)
        for loaded in loader:
            watched(*loaded)
        watched.destroy()
        insight = insight_of(load_profile(folder), "data")
    told = re.search(r"num_workers=(\d+)", insight.remedy if insight else "")
    workers = int(told[1]) if told else 1
    dataset = Sleeping(args.steps * batch_size)

    def measure(workers: int) -> float:
        loader = DataLoader(program.options, dataset, batch_size, num_workers=workers)
        return us_per_step(loader, program)

    measured = compare(lambda: measure(0), lambda: measure(workers), args.rounds)
    return {"num_workers": workers, **summarize(insight, measured)}


def tiny_model(args: argparse.Namespace) -> dict[str, Any]:
    """Hardly anything to compute in a step."""
    import torch

    program = make_program(8, 2)
    batch = torch.randn(4, 8)
    insight = insight_of(program.profile(batch, batch), "python")
    told = re.search(r"device_iterations=(\d+)", insight.remedy if insight else "")
    count = int(told[1]) if told else 8
    grouped = make_program(8, 2, device_iterations=count)
    many = batch.repeat(count, 1)
    steps = max(args.steps * 10, 10 * count)
    measured = compare(
        lambda: us_per_step([(batch, batch)] * steps, program),
        lambda: us_per_step([(many, many)] * (steps // count + 5), grouped),
        args.rounds,
    )
    return {"device_iterations": count, **summarize(insight, measured)}


@contextlib.contextmanager
def busy_process() -> Iterator[None]:
    """Let another process compute meanwhile, wherever the system puts it."""
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "busy_neighbour.py"
        script.write_text(BUSY)
        with on_all_cores():
            process = subprocess.Popen([sys.executable, str(script)], start_new_session=True)
        try:
            time.sleep(0.3)
            yield
        finally:
            process.kill()
            process.wait()


def other_process(args: argparse.Namespace) -> dict[str, Any]:
    """Somebody else computes on the same cores."""
    import torch

    program = make_program(256, 20)
    batch = torch.randn(512, 256)
    batches = [(batch, batch)] * args.steps
    us_per_step(batches[:10], program)
    others = _NotOurs()
    with busy_process(), others:
        insight = insight_of(program.profile(batch, batch), "other-processes")

    def beside() -> float:
        with busy_process():
            return us_per_step(batches, program)

    measured = compare(beside, lambda: us_per_step(batches, program), args.rounds)
    named = insight is not None and "busy_neighbour.py" in insight.text
    return {"is_named": named, **summarize(insight, measured)}


class _NotOurs(contextlib.AbstractContextManager[None]):
    """Lets a process that this one started count as somebody else's."""

    def __enter__(self) -> None:
        from unittest import mock

        from torchkiln.core import _other_processes

        self._patch = mock.patch.object(
            _other_processes, "_family", lambda processes, founder: {founder} & processes.keys()
        )
        self._patch.start()

    def __exit__(self, *error: object) -> None:
        self._patch.stop()


CAUSES: dict[str, Callable[[argparse.Namespace], dict[str, Any]]] = {
    "a dataset that sleeps": slow_data,
    "a tiny model": tiny_model,
    "another process": other_process,
}


def print_table(results: dict[str, dict[str, Any]]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title="Insights, their promises and what came of them", title_justify="left")
    columns = ("cause", "found", "before, us", "after, us", "gain, us", "promised, us", "kept")
    for column in columns:
        table.add_column(column, justify="left" if column == "cause" else "right")
    for name, row in results.items():
        promised, kept = row["promised_us"], row["kept"]
        table.add_row(
            name,
            str(row["found"]),
            *(f"{row[key]:,.0f}" for key in ("before_us", "after_us", "gain_us")),
            "" if promised is None else f"{promised:,.0f}",
            "" if kept is None else f"{kept:.0%}",
        )
    Console(width=110).print(table)


def main() -> None:
    args = read_arguments()
    threads = pin_threads(args.threads)
    load = os.getloadavg()[0]
    results = {name: run(args) for name, run in CAUSES.items()}
    print_table(results)
    record = {
        "command": " ".join(["python", "benchmarks/profiling_insights.py", *sys.argv[1:]]),
        "threads": threads,
        "load_average_before": load,
        "causes": results,
        **machine(),
    }
    write_result(args.json, record)


if __name__ == "__main__":
    main()
