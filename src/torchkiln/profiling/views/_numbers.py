"""How times, sizes and rates are written. `numbers.js` writes the same; a test compares them."""

from __future__ import annotations

from torchkiln.report._units import significant

# As `torchkiln fit` counts: 1 MB is 1,048,576 bytes.
_BYTES = (("GB", 2**30), ("MB", 2**20), ("KB", 2**10))
UNKNOWN = "\N{EN DASH}"


def format_us(us: float) -> str:
    """Write a duration in the unit that a person would choose."""
    if abs(us) >= 1e6:
        return f"{significant(us / 1e6)} s"
    if abs(us) >= 1e3:
        return f"{significant(us / 1e3)} ms"
    return f"{significant(us)} µs"


def plain_us(us: float | None) -> str:
    """Write microseconds for a column of them."""
    if us is None:
        return UNKNOWN
    if us != 0 and abs(us) < 0.05:
        return "<0.1"
    return f"{us:,.1f}"


def format_share(part: float, whole: float) -> str:
    """Write what part of a whole something is; unknown if there is no whole."""
    if whole <= 0:
        return UNKNOWN
    share = 100 * part / whole
    return "<0.1 %" if 0 < share < 0.05 else f"{share:.1f} %"


def format_bytes(size_bytes: float) -> str:
    for unit, factor in _BYTES:
        if abs(size_bytes) >= factor:
            return f"{size_bytes / factor:,.2f} {unit}"
    return f"{size_bytes:,.0f} bytes"


def format_rate(rate: float | None) -> str:
    """Write GFLOP/s, GB/s; unknown or none is a dash."""
    if rate is None or rate == 0:
        return UNKNOWN
    return "<0.1" if rate < 0.05 else f"{rate:,.1f}"


def with_sign(text: str, value: float) -> str:
    """Let an increase begin with a plus, as a decrease begins with a minus."""
    return f"+{text}" if value > 0 else text
