"""Time per training step: eager PyTorch, torch.compile, Torchkiln; side by side in one run."""

from __future__ import annotations

import copy
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch

import torchkiln
from torchkiln.apps.steps._workloads import WORKLOADS, Workload
from torchkiln.core import write_atomic
from torchkiln.core._console import make_console
from torchkiln.core._machine import processor_name
from torchkiln.core._progress import progress_bar

Step = Callable[[], torch.Tensor]


@dataclass(slots=True)
class Measurement:
    """Figures of one way to run one workload."""

    step_us: float
    spread_us: float
    final_loss: float
    cold_s: float
    warm_s: float | None = None


@dataclass(slots=True)
class StepReport:
    """All figures of a run, with what is needed to judge them."""

    machine: dict[str, object]
    results: dict[str, dict[str, Measurement]] = field(default_factory=dict)


def run_step_benchmark(
    workloads: list[str],
    *,
    contenders: list[str],
    repeats: int,
    seconds: float,
    warm_start: bool,
) -> StepReport:
    """Measure every workload with every contender, interleaved.

    Args:
        workloads: Keys of `WORKLOADS`.
        contenders: Some of "eager", "compile" (torch.compile, fused optimiser), "torchkiln".
        repeats: Interleaved rounds; the median over them is reported.
        seconds: Time each contender runs per round.
        warm_start: Also measure the first call of a second process that finds its cache.
    """
    report = StepReport(_machine())
    with tempfile.TemporaryDirectory(prefix="torchkiln-bench-") as folder:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(Path(folder) / "inductor")
        for name in workloads:
            report.results[name] = _measure(name, contenders, repeats, seconds, Path(folder))
            if warm_start:
                for contender in contenders:
                    seconds_ = _first_call_elsewhere(name, contender, Path(folder))
                    report.results[name][contender].warm_s = seconds_
    return report


def _measure(
    name: str, contenders: list[str], repeats: int, seconds: float, folder: Path
) -> dict[str, Measurement]:
    torch.manual_seed(0)
    workload = WORKLOADS[name]()
    steps: dict[str, Step] = {}
    cold: dict[str, float] = {}
    for contender in contenders:
        start = time.perf_counter()
        steps[contender] = _prepare(contender, workload, folder)
        steps[contender]()
        cold[contender] = time.perf_counter() - start
    # Enough steps that a round takes the asked time, and the same number for everybody.
    begin = time.perf_counter()
    for _ in range(3):
        steps[contenders[0]]()
    count = max(3, math.ceil(seconds * 3 / (time.perf_counter() - begin)))
    times: dict[str, list[float]] = {contender: [] for contender in contenders}
    losses: dict[str, float] = {}
    rounds = [contender for _ in range(repeats) for contender in contenders]
    with progress_bar(rounds, desc=f"Timing {name}", leave=False) as bar:
        for contender in bar:
            begin = time.perf_counter()
            for _ in range(count):
                loss = steps[contender]()
            times[contender].append((time.perf_counter() - begin) / count * 1e6)
            losses[contender] = float(loss)
    for contender, value in losses.items():
        if not math.isfinite(value):
            raise FloatingPointError(f"{name} with {contender} ended with loss {value}")
    return {
        contender: Measurement(
            statistics.median(values),
            max(values) - min(values),
            losses[contender],
            cold[contender],
        )
        for contender, values in times.items()
    }


def _prepare(contender: str, workload: Workload, folder: Path) -> Step:
    """Return a function that does one training step and returns its loss."""
    module = copy.deepcopy(workload.module).train()
    if contender == "torchkiln":
        options = torchkiln.Options(cache_dir=folder / "executables")
        optimizer = workload.make_optimizer(module.parameters())
        program = torchkiln.training_model(module, options, optimizer)

        def compiled_step() -> torch.Tensor:
            loss: torch.Tensor = program(*workload.inputs)[-1]
            return loss

        return compiled_step
    if contender == "compile":
        optimizer = workload.make_optimizer(module.parameters(), fused=True)
        forward = torch.compile(module)
    elif contender == "eager":
        optimizer, forward = workload.make_optimizer(module.parameters()), module
    else:
        raise ValueError(f"unknown contender {contender!r}; use eager, compile or torchkiln")

    def step() -> torch.Tensor:
        optimizer.zero_grad()
        loss: torch.Tensor = forward(*workload.inputs)[-1]
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        return loss.detach()

    return step


def _first_call_elsewhere(name: str, contender: str, folder: Path) -> float:
    """Return the seconds from imports done to first step done in a new process."""
    # torch imports its compiler when the first optimiser is made, in eager programs too: an import.
    code = (
        "import sys, time, warnings; warnings.simplefilter('ignore'); import torch, torchkiln; "
        "import torch._dynamo, torchkiln.runtime; from pathlib import Path; "
        "from torchkiln.apps.steps._measure import WORKLOADS, _prepare; torch.manual_seed(0); "
        f"workload = WORKLOADS[{name!r}](); start = time.perf_counter(); "
        f"_prepare({contender!r}, workload, Path({str(folder)!r}))(); "
        "print(time.perf_counter() - start)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return float(done.stdout.split()[-1])


def _machine() -> dict[str, object]:
    return {
        "cpu": processor_name(),
        "threads": torch.get_num_threads(),
        "pinned": os.environ.get("OMP_PROC_BIND", "") == "true",
        "capability": torch.backends.cpu.get_cpu_capability(),
        "torch": torch.__version__,
        "torchkiln": torchkiln.__version__,
        "load_average": os.getloadavg()[0],
    }


def print_report(report: StepReport) -> None:
    """Draw the figures as a table: microseconds a step, and how many times eager's speed."""
    from rich.table import Table

    contenders = list(next(iter(report.results.values())))
    table = Table(title="One training step (median, lower is better)", title_justify="left")
    table.add_column("workload")
    titles = {"eager": "eager", "compile": "torch.compile", "torchkiln": "Torchkiln"}
    for contender in contenders:
        table.add_column(titles[contender], justify="right")
    table.add_column("vs eager", justify="right", style="bold")
    if "compile" in contenders:
        table.add_column("vs torch.compile", justify="right", style="bold")
    table.add_column("first call: cold", justify="right")
    table.add_column("warm", justify="right")
    for name, row in report.results.items():
        ours = row["torchkiln"]
        cells = [_title(name)] + [f"{row[contender].step_us:,.0f} us" for contender in contenders]
        cells.append(f"{row['eager'].step_us / ours.step_us:.2f}x")
        if "compile" in row:
            cells.append(f"{row['compile'].step_us / ours.step_us:.2f}x")
        cells.append(f"{ours.cold_s:.1f} s")
        cells.append("-" if ours.warm_s is None else f"{ours.warm_s:.2f} s")
        table.add_row(*cells)
    console = make_console(plain_width=130)
    console.print(table)
    machine = report.machine
    console.print(
        f"{machine['cpu']}, {machine['threads']} threads"
        f"{' (pinned)' if machine['pinned'] else ''}, torch {machine['torch']}, "
        f"{machine['capability']}; load average at the start {machine['load_average']:.1f}"
    )


def _title(name: str) -> str:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return WORKLOADS[name]().name


def write_report(report: StepReport, path: Path) -> None:
    """Write the figures as JSON."""
    write_atomic(path, json.dumps(asdict(report), indent=2) + "\n")
