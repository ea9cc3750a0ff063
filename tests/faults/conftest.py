"""Faults are counted as they are injected, and `make faults` prints how many there were.

The same tests run in `make test` as a sample and in `make faults` whole: what differs is how many
faults each injects (`_amount.amount`). Tests that take long even with few are marked `faults`.
"""

from __future__ import annotations

import os
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from _amount import WHOLE

_MEMORY = Path("/dev/shm")
_ROOM_BYTES = 4 << 30


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Keep temporary files in memory if there is room: each fault flushes a few to the disk."""
    if not WHOLE or config.option.basetemp is not None:
        return
    if _MEMORY.is_dir() and _may_execute(_MEMORY) and _free_bytes(_MEMORY) > _ROOM_BYTES:
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(_MEMORY))


def _may_execute(folder: Path) -> bool:
    """Whether native code may be loaded from there, and files be made."""
    return os.access(folder, os.W_OK) and not os.statvfs(folder).f_flag & os.ST_NOEXEC


def _free_bytes(folder: Path) -> int:
    return shutil.disk_usage(folder).free


def _counter(request: pytest.FixtureRequest, kind: str) -> Callable[..., None]:
    def count(what: str, number: int = 1) -> None:
        # Properties travel from the processes of pytest-xdist to the one that prints.
        request.node.user_properties.append((kind, (what, number)))

    return count


@pytest.fixture
def injected(request: pytest.FixtureRequest) -> Callable[..., None]:
    """A function that a test of many faults calls before it looks for harm."""
    return _counter(request, "injected")


@pytest.fixture
def survived(request: pytest.FixtureRequest) -> Callable[..., None]:
    """A function that a test calls with a short name for each fault that did no harm."""
    return _counter(request, "survived")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print what was survived, and what was not; errors around a test count as harm, too."""
    total: dict[str, Counter[str]] = {"injected": Counter(), "survived": Counter()}
    for outcome in ("passed", "failed"):
        for report in terminalreporter.stats.get(outcome, []):
            if "tests/faults" in report.nodeid and getattr(report, "when", "") == "call":
                for kind, value in report.user_properties:
                    if kind in total:
                        total[kind][value[0]] += value[1]
    # A process of pytest-xdist that crashes is a failure without a phase.
    harmful = {
        report.nodeid
        for outcome in ("failed", "error")
        for report in terminalreporter.stats.get(outcome, [])
        if "tests/faults" in report.nodeid
    }
    survived = total["survived"]
    all_injected = survived | total["injected"]  # the larger of each
    if not all_injected and not harmful:
        return
    terminalreporter.section("faults: injected, survived")
    for what, number in sorted(all_injected.items()):
        terminalreporter.line(f"{number:9,d} {survived[what]:9,d}  {what}")
    line = f"{all_injected.total():9,d} {survived.total():9,d}  in all"
    terminalreporter.line(f"{line}; {len(harmful)} tests found harm")
