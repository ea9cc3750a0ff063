"""Faults are counted as they are injected, and `make faults` prints how many there were.

The same tests run in `make test` as a sample and in `make faults` whole: what differs is how many
faults each injects (`_amount.amount`). Tests that take long even with few are marked `faults`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest


@pytest.fixture
def survived(request: pytest.FixtureRequest) -> Callable[..., None]:
    """A function that a test calls with a short name for each fault that did no harm."""

    def count(what: str, number: int = 1) -> None:
        # Properties travel from the processes of pytest-xdist to the one that prints.
        request.node.user_properties.append(("fault", (what, number)))

    return count


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    total: Counter[str] = Counter()
    harmful = 0
    for outcome in ("passed", "failed"):
        for report in terminalreporter.stats.get(outcome, []):
            if "tests/faults" not in report.nodeid or getattr(report, "when", "") != "call":
                continue
            harmful += outcome == "failed"
            for name, value in report.user_properties:
                if name == "fault":
                    total[value[0]] += value[1]
    if not total:
        return
    terminalreporter.section("faults injected and survived")
    for what, number in sorted(total.items()):
        terminalreporter.line(f"{number:8,d}  {what}")
    terminalreporter.line(f"{sum(total.values()):8,d}  in all; {harmful} tests found harm")
