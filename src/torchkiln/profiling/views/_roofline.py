"""How close work comes to what the machine can do.

Work needs at least the time that its operations take at the measured peak of the processor, and at
least the time that its bytes take at the measured peak of memory. The longer of the two is its
*attainable* time, and says what bounds it. Drawn over operations a byte, this limit looks like a
roof. Bytes that lie in caches move faster than the peak of memory, so work may beat it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from torchkiln.profiling.graph._values import GraphProfile, Peaks, Row

COMPUTE, MEMORY = "compute", "memory"


@dataclass(frozen=True, slots=True)
class Speed:
    """What some rows reach.

    Args:
        gflops_per_s: Operations a second, in 10⁹; None without a time.
        gbytes_per_s: Bytes a second, in 10⁹; None without a time.
        bound: `compute` or `memory`, whichever needs more of the attainable time; "" where neither
            work nor peaks are known.
        attained: Attainable time over measured time; None where one of them is unknown.
    """

    gflops_per_s: float | None
    gbytes_per_s: float | None
    bound: str = ""
    attained: float | None = None


def speed_of(rows: Iterable[Row], peaks: Peaks | None) -> Speed:
    """Return what rows reach together.

    A call computes and moves memory at the same time, so the limit is taken call by call.
    """
    work: dict[int, list[float]] = {}
    times = []
    for row in rows:
        times.append(row.us or 0.0)
        entry = work.setdefault(row.call, [0.0, 0.0])
        entry[0] += row.flops
        entry[1] += row.bytes_moved
    us = math.fsum(times)
    if us <= 0:
        return Speed(None, None)
    flops = math.fsum(entry[0] for entry in work.values())
    moved = math.fsum(entry[1] for entry in work.values())
    # Operations in a microsecond, in thousands: 10⁹ in a second.
    rates = (flops / us / 1e3, moved / us / 1e3)
    if peaks is None or peaks.gflops_per_s <= 0 or peaks.gbytes_per_s <= 0 or flops + moved <= 0:
        return Speed(*rates)
    by_bound = {COMPUTE: 0.0, MEMORY: 0.0}
    for call_flops, call_bytes in work.values():
        compute_us = call_flops / peaks.gflops_per_s / 1e3
        memory_us = call_bytes / peaks.gbytes_per_s / 1e3
        by_bound[COMPUTE if compute_us > memory_us else MEMORY] += max(compute_us, memory_us)
    bound = max(by_bound, key=by_bound.__getitem__)
    return Speed(*rates, bound, math.fsum(by_bound.values()) / us)


@dataclass(frozen=True, slots=True)
class Dot:
    """Some rows in the picture of the roof."""

    label: str
    intensity: float
    gflops_per_s: float
    us: float
    bound: str


@dataclass(frozen=True, slots=True)
class Roof:
    """The picture: both axes are logarithmic, places are in percent of the area.

    Args:
        dots: (left, top, radius in pixels, dot) of each.
        path: The roof, as points of a polyline.
        ticks_x: (left, text) of operations a byte.
        ticks_y: (top, text) of GFLOP/s.
    """

    dots: list[tuple[float, float, float, Dot]]
    path: str
    ticks_x: list[tuple[float, str]]
    ticks_y: list[tuple[float, str]]


def draw_roof(profile: GraphProfile, labels: Iterable[tuple[str, list[Row]]]) -> Roof | None:
    """Return the picture of named groups of rows; None if nothing in it is known."""
    peaks = profile.peaks
    if peaks is None or peaks.gflops_per_s <= 0 or peaks.gbytes_per_s <= 0:
        return None
    dots = [dot for label, rows in labels if (dot := _dot(label, rows, peaks)) is not None]
    if not dots:
        return None
    ridge = peaks.gflops_per_s / peaks.gbytes_per_s
    xs = [dot.intensity for dot in dots] + [ridge / 4, ridge * 4]
    ys = [dot.gflops_per_s for dot in dots] + [peaks.gflops_per_s * 1.6]
    left, right = math.floor(math.log10(min(xs))), math.ceil(math.log10(max(xs)))
    low, high = math.floor(math.log10(min(ys))), math.log10(max(ys))

    def x_of(value: float) -> float:
        return 100 * (math.log10(value) - left) / (right - left)

    def y_of(value: float) -> float:
        return 100 - 100 * (math.log10(value) - low) / (high - low)

    start = max(10.0**left, 10.0**low / peaks.gbytes_per_s)
    corners = [
        (start, start * peaks.gbytes_per_s),
        (ridge, peaks.gflops_per_s),
        (10.0**right, peaks.gflops_per_s),
    ]
    longest = max(dot.us for dot in dots)
    return Roof(
        # Areas are times; the large ones come first, so that small ones lie on top of them.
        dots=[
            (x_of(d.intensity), y_of(d.gflops_per_s), 4 + 12 * math.sqrt(d.us / longest), d)
            for d in sorted(dots, key=lambda dot: -dot.us)
        ],
        path=" ".join(f"{x_of(x):.2f},{y_of(y):.2f}" for x, y in corners),
        ticks_x=[(x_of(10.0**n), f"{10.0**n:g}") for n in range(left, right + 1)],
        ticks_y=[(y_of(10.0**n), f"{10.0**n:g}") for n in range(low, math.floor(high) + 1)],
    )


def _dot(label: str, rows: list[Row], peaks: Peaks) -> Dot | None:
    flops = math.fsum(row.flops for row in rows)
    moved = math.fsum(row.bytes_moved for row in rows)
    us = math.fsum(row.us or 0.0 for row in rows)
    if flops <= 0 or moved <= 0 or us <= 0:
        return None
    return Dot(label, flops / moved, flops / us / 1e3, us, speed_of(rows, peaks).bound)
