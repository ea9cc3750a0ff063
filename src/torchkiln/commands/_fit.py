"""`torchkiln fit`: does a program fit into the memory, and what to do if it does not."""

from __future__ import annotations

import importlib
import importlib.util
import json as json_module
import math
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchkiln.core import OptionsError, write_atomic

if TYPE_CHECKING:
    from torchkiln.runtime import MemoryReport

_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_SIZE = re.compile(r"\s*([0-9]*\.?[0-9]+)\s*([KMGT]?)(?:i?B)?\s*", re.IGNORECASE)
_CGROUP_LIMIT = Path("/sys/fs/cgroup/memory.max")
_ROWS = 20
# Above this share of the limit, the page cache and other programs begin to suffer.
_COMFORTABLE = 0.9


def fit(program: str, limit: str | None, recompute: str | None, json: Path | None) -> None:
    """Predict the memory of a program that a Python function makes, and print the verdict."""
    import psutil

    from torchkiln.runtime import Program

    limit_bytes = parse_size(limit) if limit is not None else available_bytes()
    base_bytes = psutil.Process().memory_info().rss
    made, args, kwargs = _make(program)
    if recompute is not None:
        if not isinstance(made, Program):
            raise OptionsError(
                f"--recompute needs a torchkiln Program, {program} made a {type(made).__name__}; "
                "set the option where the program is made"
            )
        chosen = "auto" if recompute == "auto" else recompute.split(",")
        made = Program(
            made.module,
            made.options.replace(recompute=chosen),
            made.optimizer,
            training=made.training,
        )
    sys.stderr.write("Planning memory, which takes some seconds to a minute\n")
    report = made.memory_report(*args, **kwargs)
    # A limit counts Python and its libraries; what is available does not: they run already.
    left_bytes = max(limit_bytes - base_bytes, 0) if limit is not None else limit_bytes
    print_memory_report(report, left_bytes)
    if json is not None:
        write_atomic(json, json_module.dumps(to_plain(report, left_bytes), indent=2) + "\n")
        sys.stderr.write(f"wrote {json}\n")


def print_memory_report(report: MemoryReport, limit_bytes: int) -> None:
    """Print parts, modules, the verdict, and remedies with their predicted figures.

    Args:
        report: What `program.memory_report(*example)` returned.
        limit_bytes: What the program may use beside Python and its libraries.
    """
    from rich.console import Console
    from rich.table import Table

    console = Console(width=None if os.isatty(1) else 110)
    table = Table(title="Memory at the peak", title_justify="left")
    table.add_column("what")
    table.add_column("MB", justify="right")
    table.add_column("share", justify="right")
    total = max(report.total_bytes, 1)
    for name, size in report.parts.items():
        if size:
            table.add_row(name, _mb(size), f"{size / total:.0%}")
    table.add_row("total", _mb(report.total_bytes), "", style="bold")
    console.print(table)
    _print_modules(report, console)
    where = f" in {report.peak_module}" if report.peak_module else ""
    console.print(f"The peak is reached in {report.peak_phase}{where}.", highlight=False)
    if report.recomputed:
        names = ", ".join(name or "all of forward" for name in report.recomputed)
        console.print(f"Recomputed: {names}", highlight=False)
    share = report.total_bytes / max(limit_bytes, 1)
    if share <= _COMFORTABLE:
        console.print(f"It fits: {share:.0%} of {_size(limit_bytes)}.", style="green")
        return
    if share <= 1:
        console.print(f"It just fits: {share:.0%} of {_size(limit_bytes)}.", style="yellow")
    else:
        needed, there = _size(report.total_bytes), _size(limit_bytes)
        console.print(f"It does not fit: {needed} are needed, there are {there}.", style="red")
    console.print("What helps, with the total to expect:")
    for remedy, expected in remedies(report, limit_bytes):
        console.print(f"  {_size(expected):>10}  {remedy}", highlight=False)


def remedies(report: MemoryReport, limit_bytes: int) -> Iterator[tuple[str, int]]:
    """Yield what makes the program smaller, and its total then."""
    total, rows = report.total_bytes, report.micro_batch_size
    fixed = total - report.step_bytes - report.batch_bytes
    if report.recomputable_bytes > 0:
        yield 'Options(recompute="auto")', total - report.recomputable_bytes
    if rows > 1:
        room = max(limit_bytes * _COMFORTABLE - fixed, 0)
        fitting = int(rows * room / max(total - fixed, 1))
        smaller = min(max(fitting, 1), rows - 1)
        scaled = fixed + (total - fixed) * smaller // rows
        yield f"micro-batches of {smaller} rows instead of {rows}", scaled
        if report.training:
            times = math.ceil(rows / smaller)
            yield (
                f"and gradient_accumulation={times} for the same weight update",
                scaled + report.gradient_sum_bytes,
            )
    yield (
        'Options(precision="bfloat16"): activations take half (slow on CPUs without bfloat16)',
        total - report.saved_bytes // 2,
    )
    if limit_bytes > 0 and total > limit_bytes:
        stages = math.ceil(total / limit_bytes)
        yield f"a pipeline over {stages} or more machines of this size", total // stages


def to_plain(report: MemoryReport, limit_bytes: int) -> dict[str, Any]:
    """Return the report as JSON values, sizes in bytes."""
    import dataclasses

    values = dataclasses.asdict(report)
    values["backend"] = report.backend.value
    values["total_bytes"] = report.total_bytes
    values["limit_bytes"] = limit_bytes
    values["fits"] = report.total_bytes <= limit_bytes
    return values


def parse_size(text: str) -> int:
    """Return the bytes of a size such as 8GB, 512M or 1.5 GiB; K, M, G, T are powers of 1024."""
    match = _SIZE.fullmatch(text)
    if match is None:
        raise OptionsError(f"{text!r} is not a size; write it like 8GB, 512MB or 1.5G")
    return int(float(match[1]) * _UNITS[match[2].upper()])


def available_bytes() -> int:
    """Return the memory that programs can still get here, a container's limit included."""
    import psutil

    available = int(psutil.virtual_memory().available)
    try:
        limit = int(_CGROUP_LIMIT.read_text())
        used = int(_CGROUP_LIMIT.with_name("memory.current").read_text())
    except (OSError, ValueError):  # no container, or one without a limit ("max")
        return available
    return min(available, max(limit - used, 0))


def _make(program: str) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """Call the function that the user named and return the program with its example."""
    place, _, name = program.rpartition(":")
    if not place or not name:
        raise OptionsError(
            f"{program!r} names no function; write file.py:function or package.module:function"
        )
    function = getattr(_load(place), name, None)
    if not callable(function):
        raise OptionsError(f"there is no function {name!r} in {place}")
    made = function()
    if not (isinstance(made, tuple) and len(made) == 2 and hasattr(made[0], "memory_report")):
        raise OptionsError(
            f"{program} must return (program, example): what training_model or inference_model "
            f"made, and the arguments of one call; it returned {type(made).__name__}"
        )
    example = made[1]
    if isinstance(example, dict):
        return made[0], (), example
    return made[0], tuple(example) if isinstance(example, list | tuple) else (example,), {}


def _load(place: str) -> Any:
    if not place.endswith(".py"):
        sys.path.insert(0, os.getcwd())
        try:
            return importlib.import_module(place)
        except ModuleNotFoundError as error:
            raise OptionsError(
                f"cannot import {place} ({error}); start where it can be imported, or name the file"
            ) from error
    path = Path(place).resolve()
    if not path.is_file():
        raise OptionsError(f"there is no file {place}")
    sys.path.insert(0, str(path.parent))  # as `python file.py` does
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


def _print_modules(report: MemoryReport, console: Any) -> None:
    from rich.table import Table

    rows = {
        name: (m.parameter_bytes + m.optimizer_bytes, m.saved_bytes)
        for name, m in report.modules.items()
    }
    largest = sorted(rows, key=lambda name: -sum(rows[name]))[:_ROWS]
    table = Table(
        title=f"Modules, the largest {len(largest)} of {len(rows)}, without modules inside",
        title_justify="left",
    )
    for column in ("module", "weights and state, MB", "activations at the peak, MB"):
        table.add_column(column, justify="left" if column == "module" else "right")
    for name in largest:
        table.add_row(name or "(outermost)", *[_mb(size) for size in rows[name]])
    console.print(table)


def _mb(size_bytes: float) -> str:
    return f"{size_bytes / 2**20:,.1f}"


def _size(size_bytes: float) -> str:
    return f"{size_bytes / 2**30:,.2f} GB" if size_bytes >= 2**30 else f"{_mb(size_bytes)} MB"
