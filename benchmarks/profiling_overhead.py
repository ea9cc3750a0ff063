"""What marks for the system profile cost: while nobody listens, and while a run is recorded.

    .venv/bin/python benchmarks/profiling_overhead.py [--repeats 7] [--number 200000]

A step is what the training loop marks for one: five stretches of work, and its look at whether
counters are wanted. Writes benchmarks/results/<machine>/profiling_overhead.json.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from _results import machine, result_path, write_result
from _small import parse_arguments

from torchkiln.core import counter, is_traced, span
from torchkiln.profiling import record


def one_span() -> None:
    with span("training", "step"):
        pass


def one_counter() -> None:
    counter("training", "samples/s", 1.0)


def one_step() -> None:
    with span("training", "wait for data"), span("data", "wait for batch"):
        pass
    with span("training", "step"), span("program", "training step"):
        pass
    with span("report", "step"):
        is_traced()


def nothing() -> None:
    pass


def measure(work: Callable[[], None], number: int, repeats: int) -> list[float]:
    """Return nanoseconds a call, without those of calling a function, for each repetition."""
    found = []
    for _ in range(repeats):
        seconds = []
        for called in (work, nothing):
            start = time.perf_counter()
            for _ in range(number):
                called()
            seconds.append(time.perf_counter() - start)
        found.append((seconds[0] - seconds[1]) / number * 1e9)
    return found


def main() -> None:
    """Measure, print the medians, keep all figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--number", type=int, default=200_000, help="calls in a repetition")
    parser.add_argument("--json", type=Path, default=result_path("profiling_overhead"))
    wanted = parse_arguments(parser, repeats=2, number=100)
    if is_traced():
        raise SystemExit("PVTI_OPTIONS is set: unset it, to measure what marks cost without it")
    cases = {"span": one_span, "counter": one_counter, "step": one_step}
    off = {name: measure(work, wanted.number, wanted.repeats) for name, work in cases.items()}
    fewer = max(wanted.number // 20, 1)  # each of them is written to a disk
    with tempfile.TemporaryDirectory(prefix="torchkiln-") as folder, record(folder):
        on = {name: measure(work, fewer, wanted.repeats) for name, work in cases.items()}
    medians = {
        name: {
            "unset_ns": round(statistics.median(off[name]), 1),
            "recorded_ns": round(statistics.median(on[name]), 1),
        }
        for name in cases
    }
    for name, found in medians.items():
        ratio = found["recorded_ns"] / max(found["unset_ns"], 0.1)
        print(
            f"{name:<8} {found['unset_ns']:8.0f} ns unset   {found['recorded_ns']:8.0f} ns recorded"
            f"   ({ratio:.0f} times)"
        )
    rounds = {name: {"unset_ns": off[name], "recorded_ns": on[name]} for name in cases}
    record_of_all = {**machine(), "number": wanted.number, "median": medians, "rounds": rounds}
    write_result(wanted.json, record_of_all)
    print(f"wrote {wanted.json}")


if __name__ == "__main__":
    main()
