"""Live memory over the calls of a step, as a picture that scales to any width.

The curves are paths in a square of 100 by 100 that the page stretches; texts lie over it as HTML,
so that they keep their size.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

from torchkiln.profiling.graph._values import Block, GraphProfile, Liveness
from torchkiln.profiling.views._numbers import format_bytes

KINDS = ("activation", "gradient", "temporary")


def live_bytes(liveness: Liveness, num_calls: int) -> dict[str, list[int]]:
    """Return the bytes of the blocks that are alive during each call, by kind."""
    last = max((block.last for block in liveness.blocks), default=-1)
    count = max(num_calls, last + 1)
    changes: dict[str, list[int]] = {}
    for block in liveness.blocks:
        change = changes.setdefault(block.kind, [0] * (count + 1))
        change[block.born] += block.size_bytes
        change[block.last + 1] -= block.size_bytes
    order = [kind for kind in KINDS if kind in changes] + sorted(set(changes) - set(KINDS))
    return {kind: list(itertools.accumulate(changes[kind][:-1])) for kind in order}


def highest(liveness: Liveness, num_calls: int) -> tuple[int, int]:
    """Return the call at which most blocks are alive by their sizes, and how many bytes that is."""
    totals = [sum(values) for values in zip(*live_bytes(liveness, num_calls).values(), strict=True)]
    if not totals:
        return 0, 0
    call = max(range(len(totals)), key=totals.__getitem__)
    return call, totals[call]


@dataclass(frozen=True, slots=True)
class Area:
    """One band of the picture."""

    kind: str
    path: str


@dataclass(frozen=True, slots=True)
class Drawing:
    """The picture; places are in percent, from the left and from the top.

    Args:
        areas: Bands from the bottom to the top.
        num_calls: How many calls the width stands for.
        top_bytes: What the height stands for.
        ticks_y: (top, text) of sizes.
        ticks_x: (left, text) of calls.
        peak_left: Where the peak is.
        peak_top: How high it is.
        machine_top: Where the memory of the machine ends; None if that is beyond the picture.
    """

    areas: list[Area]
    num_calls: int
    top_bytes: float
    ticks_y: list[tuple[float, str]]
    ticks_x: list[tuple[float, str]]
    peak_left: float
    peak_top: float
    machine_top: float | None


def draw_liveness(profile: GraphProfile, *, with_always: bool = True) -> Drawing | None:
    """Return the picture; None if there is no plan, or it has no calls.

    Args:
        profile: Whose memory to draw.
        with_always: Whether to put what is always there below what the step allocates.
    """
    liveness = profile.liveness
    if liveness is None:
        return None
    curves = live_bytes(liveness, len(profile.calls))
    num_calls = max([len(profile.calls), *(len(curve) for curve in curves.values())])
    if num_calls == 0:
        return None
    base = sum(liveness.always.values()) if with_always else 0
    highest_bytes = base + max(liveness.peak_bytes, highest(liveness, len(profile.calls))[1])
    near = with_always and 0 < liveness.machine_bytes < 1.6 * highest_bytes
    ticks, top = _size_ticks(1.08 * max(highest_bytes, liveness.machine_bytes if near else 0, 1))
    floor = [0] * num_calls
    areas = []
    bands = {"always": [base] * num_calls} if base else {}
    for kind, curve in {**bands, **curves}.items():
        roof = [below + size for below, size in zip(floor, curve, strict=True)]
        areas.append(Area(kind, _band(floor, roof, top)))
        floor = roof
    return Drawing(
        areas=areas,
        num_calls=num_calls,
        top_bytes=top,
        ticks_y=[(100 - 100 * tick / top, format_bytes(tick) if tick else "0") for tick in ticks],
        ticks_x=_call_ticks(num_calls),
        peak_left=100 * (liveness.peak_call + 0.5) / num_calls,
        peak_top=100 - 100 * (base + liveness.peak_bytes) / top,
        machine_top=100 - 100 * liveness.machine_bytes / top if near else None,
    )


def _band(floor: list[int], roof: list[int], top: float) -> str:
    """Return a closed path: along the roof to the right, along the floor back, in steps."""
    scale = 100 / len(roof)

    def corners(values: list[int]) -> list[str]:
        points: list[str] = []
        for call, value in enumerate(values):
            y = 100 - 100 * value / top
            if call == 0 or value != values[call - 1]:
                points.append(f"H{scale * call:.3f}V{y:.3f}")
        return [*points, "H100"]

    def back(values: list[int]) -> list[str]:
        points = []
        for call in range(len(values) - 1, -1, -1):
            if call == len(values) - 1 or values[call] != values[call + 1]:
                right = scale * (call + 1)
                points.append(f"H{right:.3f}V{100 - 100 * values[call] / top:.3f}")
        return [*points, "H0"]

    return f"M0 100{''.join(corners(roof))}{''.join(back(floor))}Z"


def _size_ticks(most_bytes: float) -> tuple[list[float], float]:
    """Return about four round sizes, and the height of the picture."""
    unit = 1024.0 ** max(math.floor(math.log(max(most_bytes, 1), 1024)), 0)
    rough = most_bytes / unit / 4
    power = 10.0 ** math.floor(math.log10(rough)) if rough > 0 else 1.0
    step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= rough) * unit
    ticks = [step * place for place in range(int(most_bytes / step) + 1)]
    return ticks, most_bytes


def _call_ticks(num_calls: int) -> list[tuple[float, str]]:
    if num_calls <= 1:
        return [(50.0, "0")]
    step = max(1, 10 ** math.floor(math.log10(num_calls)) // 2)
    while num_calls / step > 8:
        step *= 2
    return [(100 * (call + 0.5) / num_calls, f"{call:,}") for call in range(0, num_calls, step)]


def blocks_at_peak(liveness: Liveness) -> list[Block]:
    """Return what is alive at the peak, the largest first."""
    return sorted(
        (block for block in liveness.blocks if block.at_peak),
        key=lambda block: (-block.size_bytes, block.born),
    )
