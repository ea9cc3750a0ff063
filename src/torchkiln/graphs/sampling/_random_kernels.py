"""Random numbers inside compiled loops: one 64-bit counter, hashed (SplitMix64).

The state is a `uint64` array of one element that every draw advances. Constants are `np.uint64`
throughout, because Numba turns a mix of signed and unsigned integers into floats.

Numba's cache of a function does not see changes of what it calls in another file: after an edit
here, remove `__pycache__`.
"""

# Numba has no types; its decorator hides those of the functions.
# mypy: allow-untyped-decorators

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

_STEP = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)
_S27, _S30, _S31, _S11 = np.uint64(27), np.uint64(30), np.uint64(31), np.uint64(11)
_UNIT = 1.0 / 2**53


@njit(cache=True)
def mix(value: Any) -> Any:
    """Hash a `uint64`."""
    value = (value ^ (value >> _S30)) * _MIX_1
    value = (value ^ (value >> _S27)) * _MIX_2
    return value ^ (value >> _S31)


@njit(cache=True)
def draw_below(state: Any, bound: Any) -> Any:
    """Draw an `int64` from 0 to `bound - 1`; the bias of the modulo is below bound / 2**64."""
    state[0] += _STEP
    return np.int64(mix(state[0]) % np.uint64(bound))


@njit(cache=True)
def draw_unit(state: Any) -> Any:
    """Draw a float above 0 and at most 1, so that its logarithm is finite."""
    state[0] += _STEP
    return (np.float64(mix(state[0]) >> _S11) + 1.0) * _UNIT


@njit(cache=True)
def shuffle(values: Any, state: Any) -> None:
    """Bring `values` into a random order, in place."""
    for last in range(len(values) - 1, 0, -1):
        other = draw_below(state, last + 1)
        values[last], values[other] = values[other], values[last]
