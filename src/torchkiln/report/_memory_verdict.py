"""Whether a program fits into the memory of this machine, told to a person; no torch here."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchkiln.core._console import make_console
from torchkiln.report._units import format_count

if TYPE_CHECKING:
    from torchkiln.runtime import MemoryReport

_CGROUP_LIMIT = Path("/sys/fs/cgroup/memory.max")
_ROWS = 20
# Above this share of the limit, the page cache and other programs begin to suffer.
_COMFORTABLE = 0.9


def print_memory_report(report: MemoryReport, limit_bytes: int) -> bool:
    """Print parts, modules, the verdict, and remedies with their predicted figures.

    Args:
        report: What `program.memory_report(*example)` returned.
        limit_bytes: What the program may use beside Python and its libraries.

    Returns:
        Whether it fits.
    """
    from rich.table import Table

    console = make_console(plain_width=110)
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
        console.print(f"It fits: {share:.0%} of {describe_size(limit_bytes)}.", style="green")
        return True
    if share <= 1:
        console.print(f"It just fits: {share:.0%} of {describe_size(limit_bytes)}.", style="yellow")
    else:
        needed, there = describe_size(report.total_bytes), describe_size(limit_bytes)
        console.print(f"It does not fit: {needed} are needed, there are {there}.", style="red")
    console.print("What helps, with the total to expect:")
    for remedy, expected in remedies(report, limit_bytes):
        console.print(f"  {describe_size(expected):>10}  {remedy}", highlight=False)
    return share <= 1


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
        yield f"micro-batches of {format_count(smaller, 'rows')} instead of {rows}", scaled
        if report.training:
            times = math.ceil(rows / smaller)
            yield (
                f"the same with gradient_accumulation={times}, for the same weight update",
                scaled + report.gradient_sum_bytes,
            )
    yield (
        'Options(precision="bfloat16"): activations take half (slow on CPUs without bfloat16)',
        total - report.saved_bytes // 2,
    )
    if limit_bytes > 0 and total > limit_bytes:
        stages = math.ceil(total / limit_bytes)
        yield f"a pipeline over {stages} or more machines of this size", total // stages


def best_first(report: MemoryReport, limit_bytes: int) -> list[tuple[str, int]]:
    """Return what makes the program smaller, and its total then; first what makes it fit."""
    return sorted(
        remedies(report, limit_bytes),
        key=lambda remedy: max(remedy[1] - limit_bytes, 0),
    )


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


def describe_size(size_bytes: float) -> str:
    """Return a size as people say it."""
    return f"{size_bytes / 2**30:,.2f} GB" if size_bytes >= 2**30 else f"{_mb(size_bytes)} MB"
