"""Rates and shares follow from counts and clock values alone."""

from __future__ import annotations

import pytest

from torchkiln.core import _beacon_layout as layout
from torchkiln.monitor._rates import Counted, executing_ns, is_moving, rate, share, waiting_ns

S = 1_000_000_000


def slot(**values: object) -> layout.SlotRecord:
    fields = dict.fromkeys(("sequence", "since_ns", "calls", "steps", "executing_ns"), 0)
    fields |= dict.fromkeys(("ended_ns", "interval_ns", "rank", "number"), 0)
    texts = dict.fromkeys(("name", "kind", "backend", "source", "phase", "device"), "")
    start = {"state": layout.READY, "steps_per_call": 1, "num_ranks": 1}
    return layout.SlotRecord(**{**fields, **texts, **start, **values})  # type: ignore[arg-type]


def test_a_rate_is_taken_from_end_to_end():
    before = Counted(total=100, ended_ns=10 * S, last=1, interval_ns=S // 3)
    now = Counted(total=103, ended_ns=11 * S, last=1, interval_ns=S // 3)
    # Looked at later than the last step ended; the rate does not depend on when.
    assert rate(now, before, 11 * S + 300_000_000) == pytest.approx(3.0)
    assert rate(now, before, 11 * S) == pytest.approx(3.0)


def test_steps_slower_than_looks_have_the_rate_of_the_last():
    now = Counted(total=4, ended_ns=100 * S, last=2, interval_ns=10 * S)
    assert rate(now, now, 101 * S) == pytest.approx(0.2)
    assert rate(now, None, 101 * S) == pytest.approx(0.2)
    # The present one takes longer already.
    assert rate(now, now, 120 * S) == pytest.approx(0.1)


def test_what_stands_still_has_no_rate():
    now = Counted(total=4, ended_ns=100 * S, last=2, interval_ns=10 * S)
    assert rate(now, now, 201 * S) is None
    fast = Counted(total=1000, ended_ns=100 * S, last=1, interval_ns=1000)
    before = Counted(total=900, ended_ns=99 * S, last=1, interval_ns=1000)
    assert rate(fast, before, 104 * S) == pytest.approx(100.0)
    assert rate(fast, before, 106 * S) is None


def test_the_first_step_has_no_rate():
    never = Counted(total=0, ended_ns=0, last=1, interval_ns=0)
    first = Counted(total=1, ended_ns=S, last=1, interval_ns=0)
    assert rate(never, None, S) is None
    assert rate(never, never, S) is None
    assert rate(first, never, S) is None  # nobody knows when it began
    assert not is_moving(never, 10 * S)


def test_the_present_call_counts_as_executing():
    assert executing_ns(slot(executing_ns=5, since_ns=100), 130) == 35
    assert executing_ns(slot(executing_ns=5), 130) == 5
    assert executing_ns(slot(executing_ns=5, since_ns=100, state=layout.COMPILING), 130) == 5


def test_the_present_wait_counts():
    record = layout.ProcessRecord(0, 100, 7, 0, 0, 0, 0, 0, 0, 0.0)
    assert waiting_ns(record, 150) == 57


def test_shares_are_between_nothing_and_all():
    assert share(30, 10, 100) == pytest.approx(0.2)
    assert share(300, 10, 100) == 1.0
    assert share(10, 30, 100) == 0.0
    assert share(30, 10, 0) is None
