"""Rates and shares from two readings of the same beacon.

A rate is taken from the end of one step to the end of another, not from look to look: with three
steps in a second of looking, "3 a second" could be anything between 2 and 4.
"""

from __future__ import annotations

from dataclasses import dataclass

from torchkiln.core import _beacon_layout as layout

# Nothing that took this many times as long as usual is still in the middle of a step.
_PATIENCE = 10
_LEAST_PATIENCE_NS = 5_000_000_000


@dataclass(frozen=True, slots=True)
class Counted:
    """How far a counter was when it last moved.

    Args:
        total: The counter.
        ended_ns: When it moved; 0: it never did.
        last: By how much.
        interval_ns: How long after the time before; 0: there was none.
    """

    total: int
    ended_ns: int
    last: int
    interval_ns: int


def steps_of(slot: layout.SlotRecord) -> Counted:
    return Counted(slot.steps, slot.ended_ns, slot.steps_per_call, slot.interval_ns)


def samples_of(process: layout.ProcessRecord) -> Counted:
    return Counted(
        process.samples, process.trained_ns, process.train_samples, process.train_interval_ns
    )


def rate(now: Counted, before: Counted | None, at_ns: int) -> float | None:
    """Return how fast a counter moves, a second.

    Args:
        now: How it is.
        before: How it was; None: nobody looked.
        at_ns: When it is looked at.

    Returns:
        Over all that ended between the two looks, or else by the last one; None if nothing moves.
    """
    if before is not None and before.ended_ns and now.ended_ns > before.ended_ns:
        speed = (now.total - before.total) / (now.ended_ns - before.ended_ns) * 1e9
        return speed if is_moving(now, at_ns) else None
    if not now.interval_ns or not is_moving(now, at_ns):
        return None
    # The step that is going on may take longer than the last one did.
    return now.last / max(now.interval_ns, at_ns - now.ended_ns) * 1e9


def is_moving(counted: Counted, at_ns: int) -> bool:
    """Whether the next step is to be expected: not if the last one is long ago."""
    if not counted.ended_ns:
        return False
    patience = max(_PATIENCE * counted.interval_ns, _LEAST_PATIENCE_NS)
    return at_ns - counted.ended_ns <= patience


def share(now_ns: int, before_ns: int, span_ns: int) -> float | None:
    """Return which part of a span a sum of nanoseconds grew by."""
    if span_ns <= 0:
        return None
    return min(max((now_ns - before_ns) / span_ns, 0.0), 1.0)


def executing_ns(slot: layout.SlotRecord, at_ns: int) -> int:
    """Return how long a program has run, the present call included."""
    is_in_call = slot.since_ns and slot.state == layout.READY
    return slot.executing_ns + (max(at_ns - slot.since_ns, 0) if is_in_call else 0)


def waiting_ns(process: layout.ProcessRecord, at_ns: int) -> int:
    """Return how long a process has waited for data, the present wait included."""
    present = max(at_ns - process.waiting_since_ns, 0) if process.waiting_since_ns else 0
    return process.waiting_ns + present
