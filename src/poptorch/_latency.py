"""Latencies from a program's counters."""

from __future__ import annotations

_KEYS = ("input", "input_complete", "output", "output_complete")


def empty_counters() -> dict[str, list[list[float]]]:
    """Return the counters of a model that has not been compiled."""
    return {key: [[]] for key in _KEYS}


def between(
    counters: dict[str, list[list[float]]], begin: str, end: str
) -> tuple[float, float, float]:
    """Return (min, max, average) seconds from the first `begin` to the last `end` of each step.

    All tensors of a micro-batch count together. Modes that return fewer outputs than there were
    inputs leave the last ones to pair up.
    """
    starts = [min(moment) for moment in zip(*counters[begin], strict=True)]
    ends = [max(moment) for moment in zip(*counters[end], strict=True)]
    count = min(len(starts), len(ends))
    if count == 0:
        return (0.0, 0.0, 0.0)
    spans = [b - a for a, b in zip(starts[-count:], ends[-count:], strict=True)]
    return (min(spans), max(spans), sum(spans) / count)
