"""Coefficients of a fine cubic spline, from values on a grid that is four times as coarse."""

from __future__ import annotations

import math

import torch
from torch import Tensor

# Fine knots for each coarse one: as `refine` makes them.
STEP = 4
# Values between coarse knots are those of the polynomial through so many of them.
_POINTS = 12
# A coefficient depends on all values, each with this times the weight of the one before.
_DECAY = math.sqrt(3) - 2
_REACH = 16  # 7e-10 is left

_FIRST = -(_REACH // STEP) - (_POINTS // 2 - 1)
_LAST = (STEP - 1 + _REACH) // STEP + _POINTS // 2
NUM_TAPS = _LAST - _FIRST + 1


def num_values(num_knots: int) -> int:
    """Return how many values a spline of `num_knots` coefficients is made of."""
    return -(-num_knots // STEP) + NUM_TAPS - 1


def value_steps(num_knots: int, device: torch.device) -> Tensor:
    """Return where values are wanted, in fine spacings from the first coefficient, float64."""
    numbers = torch.arange(num_values(num_knots), dtype=torch.float64, device=device)
    return (numbers + _FIRST) * STEP


def spline_weights() -> Tensor:
    """Return how `torchkiln.ops.refine` turns values into coefficients: [4, num_taps], float64."""
    weights = torch.zeros(STEP, NUM_TAPS, dtype=torch.float64)
    for phase in range(STEP):
        for apart in range(-_REACH, _REACH + 1):
            share = math.sqrt(3) * _DECAY ** abs(apart)
            whole, rest = divmod(phase + apart, STEP)
            first = whole - (_POINTS // 2 - 1)
            for point, weight in enumerate(_lagrange(rest / STEP)):
                weights[phase, first + point - _FIRST] += share * weight
    # What was left out of the infinite sum: constants must stay constants.
    return weights / weights.sum(1, keepdim=True)


def _lagrange(place: float) -> list[float]:
    """Return the weights of points at -5, ..., 6 for the value at `place` in [0, 1)."""
    points = range(1 - _POINTS // 2, _POINTS // 2 + 1)
    return [
        math.prod((place - other) / (point - other) for other in points if other != point)
        for point in points
    ]
