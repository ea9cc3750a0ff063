"""Are profiles true, and what do they cost? Times, clock reads, known delays and memory.

    python benchmarks/profiling.py [--workloads schnet cnn transformer uresnet] [--rounds 20]
                                   [--seconds 0.5] [--threads N] [--cache DIR]

Everything is measured side by side in one run:

1. `complete`: rows and the time outside of the executable against the wall time of steps without a
   profile, turn by turn; and the shares of the time that have a module and a line.
2. `cost`: steps with clock reads switched on against steps with them off; steps of the executable
   that everybody gets (reads off) against one that was compiled without any. Ratios are medians
   over rounds with a bootstrapped 95 % interval. Losses must have the same bits.
3. `delays`: an operator waits a known time in each of ten layers in turn; the row of that layer
   must grow by as much, and no other.
4. `memory`: the peak of the profile against what torch's allocator counts in one step, and all of
   it against the rise of a fresh process' resident memory (as `fit.py` does).

Prints tables and writes benchmarks/results/<machine>/profiling.json.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

from _results import machine, result_path, write_result
from _small import parse_arguments

from torchkiln.core._threads import on_all_cores, pin_threads

WORKLOADS = ["schnet", "cnn", "transformer", "uresnet"]
DELAY_US = 400


def read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workloads", nargs="*", choices=WORKLOADS, default=WORKLOADS)
    parser.add_argument("--rounds", type=int, default=20, help="of each comparison")
    parser.add_argument("--seconds", type=float, default=0.5, help="of each contender in a round")
    parser.add_argument("--threads", type=int, help="default: one for each core")
    parser.add_argument("--cache", type=Path, help="directory of executables kept between runs")
    parser.add_argument("--json", type=Path, default=result_path("profiling"))
    parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    return parse_arguments(parser, rounds=2, seconds=0.01, workloads=["cnn", "schnet"])


# -- programs -----------------------------------------------------------------------------------


def make_program(
    name: str, cache: Path | None, small: bool, **settings: Any
) -> tuple[Any, tuple[Any, ...]]:
    import torch
    from _profiling_workloads import make_workload

    from torchkiln import Options, training_model

    workload = make_workload(name, small)
    torch.manual_seed(1)
    optimizer = workload.make_optimizer(workload.module.parameters())
    options = Options(cache_dir=cache, show_progress=False, **settings)
    return training_model(workload.module, options, optimizer), workload.inputs


def without_marks(program: Any, inputs: tuple[Any, ...]) -> None:
    """Compile a program whose native code reads no clock."""
    from unittest import mock

    from torchkiln.runtime.compile import _inductor

    compile_entry = _inductor.compile_entry

    def plain(entry: Any, module: Any, recomputes: bool) -> Any:
        return compile_entry(entry, module, recomputes, lambda lines, digest: "")

    with mock.patch.object(_inductor, "compile_entry", plain):
        program.compile(*inputs)


def step_us(run: Callable[[], object], seconds: float) -> float:
    """Return the microseconds of a step, the mean of the quiet half, as a profile takes it."""
    times = []
    end = time.perf_counter() + seconds
    while len(times) < 6 or time.perf_counter() < end:
        start = time.perf_counter_ns()
        run()
        times.append(time.perf_counter_ns() - start)
    quiet = sorted(times)[: (len(times) + 1) // 2]
    return sum(quiet) / len(quiet) / 1e3


def in_turns(ways: dict[str, Callable[[], float]], rounds: int) -> dict[str, list[float]]:
    """Let everybody measure once a round, each round beginning with another."""
    names = list(ways)
    times: dict[str, list[float]] = {name: [] for name in names}
    for number in range(rounds):
        shift = number % len(names)
        for name in names[shift:] + names[:shift]:
            times[name].append(ways[name]())
    return times


def ratio(above: list[float], below: list[float]) -> dict[str, Any]:
    """Return the median of ratios formed round by round, with an interval that holds it at 95 %."""
    import numpy as np

    ratios = np.array(above) / np.array(below)
    picks = np.random.default_rng(0).integers(len(ratios), size=(4000, len(ratios)))
    low, high = np.percentile(np.median(ratios[picks], axis=1), [2.5, 97.5])
    return {
        "ratio": float(np.median(ratios)),
        "low": float(low),
        "high": float(high),
        "rounds": ratios.tolist(),
    }


# -- 1: everything is there ---------------------------------------------------------------------


def measure_complete(program: Any, inputs: tuple[Any, ...], args: argparse.Namespace) -> dict:
    from torchkiln.profiling import profile_program

    profiles: list[Any] = []

    def profiled() -> float:
        profiles.append(profile_program(program, inputs, {}, seconds=args.seconds))
        rows = sum(row.us for row in profiles[-1].rows)
        return float(rows + profiles[-1].times.outside_us)

    ways = {
        "profile": profiled,
        "unprofiled": lambda: step_us(lambda: program(*inputs), args.seconds),
    }
    for _ in range(3):
        program(*inputs)
    times = in_turns(ways, max(args.rounds // 4, 2))
    return {
        "step_us": min(times["unprofiled"]),
        "profile_over_wall": ratio(times["profile"], times["unprofiled"]),
        **shares(profiles),
    }


def shares(profiles: list[Any]) -> dict[str, float]:
    """Return which parts of the executable's time are put down to something, over all profiles."""
    total = owned = named = computed = lined = outside = step = 0.0
    for profile in profiles:
        outside += profile.times.outside_us
        step += profile.times.step_us
        for row in profile.rows:
            total += row.us
            owned += row.us if row.module_kind or row.parameter else 0.0
            # The outermost module is also what is told where nothing is known.
            named += row.us if row.module or row.parameter or row.line is not None else 0.0
            if row.phase != "update":
                computed += row.us
                lined += row.us if row.line is not None else 0.0
    return {
        "has_module": owned / total,
        "has_known_origin": named / total,
        "has_line": lined / computed,
        "outside_of_step": outside / step,
    }


# -- 2: what it costs ---------------------------------------------------------------------------


def measure_cost(
    program: Any, name: str, inputs: tuple[Any, ...], args: argparse.Namespace
) -> dict:
    import torch

    again, _ = make_program(name, args.cache, args.small)
    again.compile(*inputs)
    plain, plain_again = (make_program(name, None, args.small)[0] for _ in range(2))
    for one in (plain, plain_again):
        without_marks(one, inputs)

    def tell(entry: str, read: Callable[[], object]) -> None:
        """The reads are there; nobody looks at them."""

    def clocked() -> float:
        with program.executor.clocked(tell):
            return step_us(lambda: program(*inputs), args.seconds)

    def steps_of(one: Any) -> Callable[[], float]:
        return lambda: step_us(lambda: one(*inputs), args.seconds)

    ways = {
        "off": steps_of(program),
        "on": clocked,
        "none": steps_of(plain),
        "off again": steps_of(again),
        "none again": steps_of(plain_again),
    }
    times = in_turns(ways, args.rounds)

    def pair(kind: str) -> list[float]:
        return [sum(both) / 2 for both in zip(times[kind], times[f"{kind} again"], strict=True)]

    return {
        "on_over_off": ratio(times["on"], times["off"]),
        "off_over_none": ratio(pair("off"), pair("none")),
        # Two programs of the same code: they differ only in where their memory lies.
        "none_over_none": ratio(times["none again"], times["none"]),
        "off_over_off": ratio(times["off again"], times["off"]),
        "same_losses": bool(torch.equal(*losses_of(name, args))),
    }


def losses_of(name: str, args: argparse.Namespace) -> list[Any]:
    """Return the losses of ten steps with clock reads on, and of code that has none."""
    import torch

    found = []
    for marked in (True, False):
        program, inputs = make_program(name, args.cache if marked else None, args.small)
        if marked:
            program.compile(*inputs)
        else:
            without_marks(program, inputs)
        torch.manual_seed(5)
        losses = []
        for _ in range(10):
            if marked:
                with program.executor.clocked(lambda entry, read: None):
                    result = program(*inputs)
            else:
                result = program(*inputs)
            losses.append(loss_of(result))
        found.append(torch.stack(losses))
    return found


def loss_of(result: Any) -> Any:
    leaves = result if isinstance(result, tuple | list) else [result]
    flat = [leaf for leaf in leaves if hasattr(leaf, "numel")]
    return min(flat, key=lambda tensor: tensor.numel()).detach().reshape(-1)[0].clone()


# -- 3: known delays ----------------------------------------------------------------------------


def measure_delays(args: argparse.Namespace) -> dict:
    import torch
    from _profiling_workloads import DELAYED_LAYERS, DelayedStack

    from torchkiln import Options, training_model

    torch.manual_seed(0)
    module = DelayedStack(64)
    options = Options(cache_dir=args.cache, show_progress=False)
    program = training_model(module, options, torch.optim.SGD(module.parameters(), lr=1e-3))
    x = torch.randn(256, 64)
    layers = range(1 if args.small else DELAYED_LAYERS)

    def profile(delayed: int | None) -> dict[tuple[str, str, str], float]:
        delays = torch.zeros(DELAYED_LAYERS, dtype=torch.int64)
        if delayed is not None:
            delays[delayed] = DELAY_US
        rows: dict[tuple[str, str, str], float] = defaultdict(float)
        for row in program.profile(x, delays).rows:
            rows[row.phase, row.module, row.operator] += row.us
        return rows

    found = []
    for layer in layers:
        # Before and after, so that a machine that gets slower counts half.
        before, during, after = profile(None), profile(layer), profile(None)
        usual = {key: (before[key] + after[key]) / 2 for key in during}
        growth = {key: during[key] - usual[key] for key in during}
        own = ("forward", f"layers.{layer}", "torchkiln_benchmark.wait")
        others = {key: us for key, us in growth.items() if key != own}
        worst = max(others, key=lambda key: others[key])
        found.append(
            {
                "layer": layer,
                "own_row_us": growth[own],
                "largest_other_us": others[worst],
                "largest_other": " ".join(worst),
            }
        )
    return {
        "delay_us": DELAY_US,
        "num_compiles": program.num_compiles,
        "worst_own_error": max(abs(row["own_row_us"] / DELAY_US - 1) for row in found),
        "worst_other_share": max(row["largest_other_us"] / DELAY_US for row in found),
        "layers": found,
    }


# -- 4: memory ----------------------------------------------------------------------------------


def measure_memory(
    program: Any, name: str, inputs: tuple[Any, ...], args: argparse.Namespace
) -> dict:
    from torchkiln.profiling import plan_program

    liveness = program.profile(*inputs).liveness
    at_peak = sum(block.size_bytes for block in liveness.blocks if block.at_peak)
    total = program.memory_report(*inputs).total_bytes
    counted = allocated_peak(program, inputs)
    # Native programs only: recorded graphs run in Python, with whatever that needs.
    native = program.executable_path is not None
    found = {
        "peak_bytes": liveness.peak_bytes,
        "blocks_at_peak_add_up": at_peak == liveness.peak_bytes,
        "total_bytes": liveness.total_bytes,
        "is_total_of_memory_report": total == liveness.total_bytes,
        "counted_by_torch_bytes": counted,
        "peak_over_counted": liveness.peak_bytes / counted,
    }
    # The recorded graph, operator by operator: what operators allocate for themselves is not known.
    recorded, _ = make_program(name, None, args.small, backend="capture")
    planned = plan_program(recorded, inputs, {}).liveness.peak_bytes
    found["recorded_peak_over_counted"] = planned / allocated_peak(recorded, inputs)
    if native and args.cache is not None:
        risen = in_fresh_process(name, args)
        found |= {"risen_bytes": risen, "total_over_risen": liveness.total_bytes / risen}
    return found


def allocated_peak(program: Any, inputs: tuple[Any, ...]) -> int:
    """Return the most bytes that torch's CPU allocator had out at once during a step."""
    from torch.profiler import ProfilerActivity, profile

    program(*inputs)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        program(*inputs)
    changes = []
    waiting = list(recorded.profiler.kineto_results.experimental_event_tree())
    while waiting:
        event = waiting.pop()
        waiting += event.children
        if event.tag.name == "Allocation":
            changes.append((event.start_time_ns, event.extra_fields.alloc_size))
    alive = most = 0
    for _, size in sorted(changes, key=lambda change: change[0]):
        alive += size
        most = max(most, alive)
    return most


def in_fresh_process(name: str, args: argparse.Namespace) -> int:
    size = "small" if args.small else "usual"
    # Not on the one core that this thread is pinned to.
    with on_all_cores():
        done = subprocess.run(
            [sys.executable, __file__, "--child", name, str(args.cache), size],
            capture_output=True,
            text=True,
            check=False,
        )
    if done.returncode:
        raise SystemExit(f"{name} failed in a fresh process:\n{done.stderr}")
    return int(json.loads(done.stdout.splitlines()[-1]))


def child(name: str, cache: str, size: str) -> int:
    """Return by how much the resident memory of this process rises for two steps."""
    import psutil
    from fit import peak_bytes

    import torchkiln.datasets
    import torchkiln.graphs
    import torchkiln.runtime  # noqa: F401 - counted as part of the process, not of the program

    if name == "schnet":
        # Reading the molecules is no part of a step: its memory is there before.
        make_program(name, Path(cache), size == "small")
    base = psutil.Process().memory_info().rss
    program, inputs = make_program(name, Path(cache), size == "small")
    program.compile(*inputs)
    assert program.num_compiles == 0, "the executable should come from the cache"
    for _ in range(2):
        program(*inputs)
    return max(peak_bytes() - base, 1)


# -- all of it ----------------------------------------------------------------------------------


def print_tables(results: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console(width=160)
    table = Table(title="Profiles against steps without one", title_justify="left")
    columns = ("model", "step, us", "profile / wall", "module", "known origin", "line")
    for column in (*columns, "reads on / off", "off / none", "none / none", "same losses"):
        table.add_column(column, justify="left" if column == "model" else "right")
    for name, row in results["models"].items():
        full, cost = row["complete"], row["cost"]
        table.add_row(
            name,
            f"{full['step_us']:,.0f}",
            _interval(full["profile_over_wall"]),
            *(f"{full[key]:.1%}" for key in ("has_module", "has_known_origin", "has_line")),
            _interval(cost["on_over_off"]),
            _interval(cost["off_over_none"]),
            _interval(cost["none_over_none"]),
            str(cost["same_losses"]),
        )
    console.print(table)
    table = Table(title="Memory of a step", title_justify="left")
    columns = ("model", "peak, MB", "peak / torch's count", "the same, capture")
    for column in (*columns, "total, MB", "total / risen"):
        table.add_column(column, justify="left" if column == "model" else "right")
    for name, row in results["models"].items():
        memory = row["memory"]
        risen = memory.get("total_over_risen")
        table.add_row(
            name,
            f"{memory['peak_bytes'] / 2**20:,.2f}",
            f"{memory['peak_over_counted']:.4f}",
            f"{memory['recorded_peak_over_counted']:.4f}",
            f"{memory['total_bytes'] / 2**20:,.2f}",
            "" if risen is None else f"{risen:.3f}",
        )
    console.print(table)
    delays = results["delays"]
    console.print(
        f"A delay of {delays['delay_us']} us in one of {len(delays['layers'])} layers: its row is "
        f"at most {delays['worst_own_error']:.1%} off, no other grows by more than "
        f"{delays['worst_other_share']:.1%} of it.",
        highlight=False,
    )


def _interval(found: dict[str, Any]) -> str:
    return f"{found['ratio']:.3f} ({found['low']:.3f} to {found['high']:.3f})"


def main() -> None:
    args = read_arguments()
    threads = pin_threads(args.threads)
    if args.child is not None:
        print(json.dumps(child(*args.child)))
        return
    from torchkiln import Options

    results: dict[str, Any] = {
        "command": " ".join(["python", "benchmarks/profiling.py", *sys.argv[1:]]),
        "threads": threads,
        "backend": Options().backend.value,
        "load_average_before": os.getloadavg()[0],
        "models": {},
    }
    with tempfile.TemporaryDirectory() as scratch:
        args.cache = args.cache or Path(scratch)
        for name in args.workloads:
            program, inputs = make_program(name, args.cache, args.small)
            results["models"][name] = {
                "complete": measure_complete(program, inputs, args),
                "cost": measure_cost(program, name, inputs, args),
                "memory": measure_memory(program, name, inputs, args),
            }
            print(f"{name}: done", file=sys.stderr)
        results["delays"] = measure_delays(args)
    print_tables(results)
    write_result(args.json, {**results, **machine()})


if __name__ == "__main__":
    main()
