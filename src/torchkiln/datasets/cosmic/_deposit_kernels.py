"""Compiled loops that let particles leave their charge on the wires of three planes.

Lengths are in pixels: 3 mm, the distance of two wires and nearly that of two ticks. The detector is
a box of two halves; charge drifts from the cathode in the middle (x = 0) to the anode of its half
(x = -640 or 640), and the drift time is the row of the image. What comes before or after the beam
is shifted in time, towards one side in one half and towards the other in the other half.

Numba takes seconds to compile what looks clever, so there are only loops over numbers.
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit
from numpy.typing import NDArray

from torchkiln.datasets.cosmic._event import NUM_TICKS, NUM_WIRES

# Half the width (drift), the height and the length (along the beam) of the detector.
DRIFT, HEIGHT, LENGTH = 640.0, 1333.0, 1664.0

# The wires of planes 0 and 1 are inclined by 60 degrees, one each way; those of 2 are upright.
_COS, _SIN = 0.5, math.sqrt(0.75)
_FIRST_INCLINED, _FIRST_UPRIGHT = 31.0, 192.0
_STEP = 0.5
# What reaches the ticks before and after by diffusion.
_TICK_LEAK = 0.06
# Fluctuation of the charge of one step.
_LANDAU_WIDTH = 0.35

# A table of pixels that were hit: pixel by slot (-1: free), and charge by slot and kind. Dense
# images of an event would take 100 MB, nearly all of it zeros.
Pixels = NDArray[np.int32]
Charges = NDArray[np.float32]


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def _add(pixels: Pixels, charges: Charges, kind: int, pixel: int, charge: float) -> None:
    """Add charge to a pixel, in the first slot from its own on that it has or that is free."""
    mask = len(pixels) - 1
    slot = pixel & mask
    while pixels[slot] != pixel:
        if pixels[slot] == -1:
            pixels[slot] = pixel
            break
        slot = (slot + 1) & mask
    charges[slot, kind] += charge


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def _is_inside(place: NDArray[np.float64]) -> bool:
    x, y, z = place
    return bool(-DRIFT <= x < DRIFT and 0 <= y < HEIGHT and 0 <= z < LENGTH)


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def _deposit(
    pixels: Pixels,
    charges: Charges,
    kind: int,
    place: NDArray[np.float64],
    charge: float,
    shift: float,
) -> None:
    """Leave charge at a place in the detector, unless it arrives while nobody reads out."""
    x, y, z = place
    half = NUM_TICKS // 2
    first, last = (0, half - 1) if x < 0 else (half, NUM_TICKS - 1)
    time = half + x + (shift if x < 0 else -shift)
    if not first <= time <= last + 1:
        return
    tick = int(time)
    inside = time - tick
    for plane in range(3):
        if plane == 2:
            across = _FIRST_UPRIGHT + z
        else:
            across = _FIRST_INCLINED + _COS * z + _SIN * (y if plane == 0 else HEIGHT - y)
        for step in range(-1, 3):
            row = tick + step
            if row < first or row > last:
                continue
            if step == -1:
                share = _TICK_LEAK * (1 - inside)
            elif step == 0:
                share = (1 - 2 * _TICK_LEAK) * (1 - inside) + _TICK_LEAK * inside
            elif step == 1:
                share = (1 - 2 * _TICK_LEAK) * inside + _TICK_LEAK * (1 - inside)
            else:
                share = _TICK_LEAK * inside
            pixel = (plane * NUM_WIRES + int(across)) * NUM_TICKS + row
            _add(pixels, charges, kind, pixel, charge * share)


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def walk(
    rng: np.random.Generator,
    pixels: Pixels,
    charges: Charges,
    kind: int,
    start: NDArray[np.float64],
    direction: NDArray[np.float64],
    length: float,
    charge: float,
    bend: float,
    shift: float,
) -> None:
    """Move a particle along a track that is scattered a little, and leave its charge.

    It ends where it leaves the detector, and leaves nothing if it starts outside.

    Args:
        rng: Source of all random numbers.
        pixels: Written, int32 [num_slots].
        charges: Written, float32 [num_slots, 3 kinds].
        kind: Column of `charges`.
        start: Moved to where the particle ends, [3].
        direction: Turned to where it flies then, [3], of length 1.
        length: Of the track.
        charge: Left in one pixel of length, on average.
        bend: Scattering, in radians for a pixel of length.
        shift: Ticks that it came too late.
    """
    turn = bend * math.sqrt(_STEP)
    for _ in range(int(length / _STEP)):
        if not _is_inside(start):
            break
        amount = charge * _STEP * math.exp(rng.normal() * _LANDAU_WIDTH)
        _deposit(pixels, charges, kind, start, amount, shift)
        norm = 0.0
        for axis in range(3):
            direction[axis] += turn * rng.normal()
            norm += direction[axis] ** 2
        for axis in range(3):
            direction[axis] /= math.sqrt(norm)
            start[axis] += direction[axis] * _STEP


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def shower(
    rng: np.random.Generator,
    pixels: Pixels,
    charges: Charges,
    kind: int,
    start: NDArray[np.float64],
    direction: NDArray[np.float64],
    num_electrons: int,
    reach: float,
    spread: float,
    charge: float,
    shift: float,
) -> None:
    """Let an electromagnetic shower develop: short curly electrons along an axis that widens.

    Args:
        rng: Source of all random numbers.
        pixels: Written, int32 [num_slots].
        charges: Written, float32 [num_slots, 3 kinds].
        kind: Column of `charges`.
        start: Where it begins, [3].
        direction: Its axis, [3], of length 1.
        num_electrons: How many electrons.
        reach: Length scale along the axis.
        spread: Width of the shower at the distance `reach`.
        charge: Left in one pixel of length.
        shift: Ticks that it came too late.
    """
    place = np.empty(3)
    way = np.empty(3)
    for number in range(num_electrons):
        # The first flies along the axis: a shower starts as a track.
        along = 0.0 if number == 0 else reach * 0.5 * (rng.exponential() + rng.exponential())
        # Most are close to the axis, and some photons fly far before they show.
        side = spread * (0.05 + along / reach) * rng.exponential()
        norm = 0.0
        for axis in range(3):
            place[axis] = start[axis] + direction[axis] * along + rng.normal() * side * 0.6
            way[axis] = direction[axis] + rng.normal() * (0.1 if number == 0 else 0.5)
            norm += way[axis] ** 2
        for axis in range(3):
            way[axis] /= math.sqrt(norm)
        near = side < 0.3 * spread
        length = reach * 0.6 if number == 0 else 1.0 + rng.exponential() * (18.0 if near else 4.0)
        bend = 0.02 if number == 0 else 0.12
        walk(rng, pixels, charges, kind, place, way, length, charge, bend, shift)


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def specks(
    rng: np.random.Generator,
    pixels: Pixels,
    charges: Charges,
    kind: int,
    centre: NDArray[np.float64],
    reach: NDArray[np.float64],
    number: int,
    charge: float,
    shift: float,
) -> None:
    """Let photons be absorbed and nuclei decay around a place, each in a pixel or two.

    Args:
        rng: Source of all random numbers.
        pixels: Written, int32 [num_slots].
        charges: Written, float32 [num_slots, 3 kinds].
        kind: Column of `charges`.
        centre: The place, [3].
        reach: How far away they may be along each axis, [3].
        number: How many.
        charge: Left in one pixel of length.
        shift: Ticks that they came too late.
    """
    place = np.empty(3)
    way = np.empty(3)
    for _ in range(number):
        for axis in range(3):
            place[axis] = centre[axis] + reach[axis] * (2 * rng.random() - 1)
            way[axis] = rng.normal()
        length = 0.6 + rng.exponential() * 1.2
        # The direction becomes one of length 1 in the first step.
        walk(rng, pixels, charges, kind, place, way, length, charge, 0.2, shift)


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def noise(
    rng: np.random.Generator,
    pixels: Pixels,
    charges: Charges,
    kind: int,
    plane: int,
    first_tick: int,
    last_tick: int,
    num_runs: int,
    threshold: float,
) -> None:
    """Add electronic noise: runs of ticks, mostly of one, whose signal is just over the threshold.

    Args:
        rng: Source of all random numbers.
        pixels: Written, int32 [num_slots].
        charges: Written, float32 [num_slots, 3 kinds].
        kind: Column of `charges`.
        plane: Where.
        first_tick: Rows that it may begin in,
        last_tick: exclusive.
        num_runs: How many.
        threshold: Signals below are not recorded.
    """
    width = LENGTH if plane == 2 else _COS * LENGTH + _SIN * HEIGHT
    begin = _FIRST_UPRIGHT if plane == 2 else _FIRST_INCLINED
    for _ in range(num_runs):
        wire = int(begin + rng.random() * width)
        tick = first_tick + int(rng.random() * (last_tick - first_tick))
        while tick < last_tick:
            pixel = (plane * NUM_WIRES + wire) * NUM_TICKS + tick
            _add(pixels, charges, kind, pixel, threshold + 0.85 * rng.exponential())
            tick += 1
            if rng.random() > 0.2:
                break
