"""One training step in plain eager PyTorch under torch's profiler."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import torch

from torchkiln.core import atomic_path, write_atomic

T = TypeVar("T")
_NUM_ROWS = 40
_LEGEND = "One training step, operations that took longest first.\n"


def profile_call(call: Callable[[], T], directory: Path) -> tuple[T, float, list[Path]]:
    """Run `call` once and write what it did.

    Returns:
        What `call` returned, the seconds that it took (starting the profiler and writing its files
        take longer), and two files: a trace that chrome://tracing and ui.perfetto.dev show, and a
        table of the operations that took longest.
    """
    from torch.profiler import ProfilerActivity, profile, record_function

    activities = [ProfilerActivity.CPU]
    if torch.cuda.is_available():
        activities.append(ProfilerActivity.CUDA)
    profiler = profile(activities=activities)
    with _muted():
        profiler.start()
    try:
        with record_function("training step"):
            start = time.perf_counter()
            result = call()
            seconds = time.perf_counter() - start
    finally:
        with _muted():
            profiler.stop()
    trace, table = directory / "training_step.trace.json", directory / "training_step.txt"
    with atomic_path(trace) as temporary:
        profiler.export_chrome_trace(str(temporary))
    rows = profiler.key_averages().table(
        sort_by="self_cpu_time_total", row_limit=_NUM_ROWS, max_name_column_width=60
    )
    write_atomic(table, f"{_LEGEND}{rows}\n")
    return result, seconds, [trace, table]


@contextlib.contextmanager
def _muted() -> Iterator[None]:
    """Keep the profiler's library from writing over bars; it listens when a process starts only."""
    sys.stderr.flush()
    kept = os.dup(2)
    try:
        with open(os.devnull, "w") as nowhere:
            os.dup2(nowhere.fileno(), 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
