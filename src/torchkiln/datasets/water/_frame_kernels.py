"""A compiled loop that reads xyz frames of water: bytes in, numbers out.

Numba takes seconds to compile what looks clever, so there are only loops over bytes.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float64]

# Why reading stopped.
END, OTHER_SIZE, BAD_COUNT, BAD_ENERGY, BAD_ATOM, BAD_POSITION = range(6)

_NEWLINE, _POINT, _PLUS, _MINUS = 10, 46, 43, 45
_ZERO, _NINE, _EQUALS = 48, 57, 61
# Powers of ten that float64 holds exactly; digits beyond the 18th do not fit an integer.
_MAX_EXACT_POWER, _MAX_DIGITS = 22, 18
_TENS = np.array([10.0**power for power in range(_MAX_EXACT_POWER + 1)])


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def read_frames(
    text: Bytes, num_atoms: int, z: NDArray[np.uint8], pos: Floats, energies: Floats
) -> tuple[int, int, int, int, int]:
    """Read frames of `num_atoms` atoms from `text` until it ends.

    A frame is a line with the number of atoms, a comment whose last word is the energy (also as
    `energy=-1.0`), and a line for each atom: O or H (any case, or 8 or 1) and three coordinates.
    Further columns are ignored, and so are blank lines between frames.

    Args:
        text: Whole lines, or the start of a frame that is to be completed next time.
        num_atoms: Of each frame.
        z: [max_frames, num_atoms], written; an atom takes 8 bytes of text at least, by which the
            caller finds enough room.
        pos: [max_frames, num_atoms, 3], written.
        energies: [max_frames], written.

    Returns:
        Why it stopped (`END` also in the middle of a frame), how many frames were read, how many
        bytes and lines they take, and the line where something is wrong, counted from 0.
    """
    frame = 0
    place = line = 0  # where the frame begins
    end = text.size
    while True:
        at = place
        while at < end and text[at] <= 32:  # blank lines between frames
            line += text[at] == _NEWLINE
            at += 1
        place = at
        stop = _line_end(text, at)
        if stop == end:
            return END, frame, place, line, line
        at, count, valid = _read_number(text, at, stop)
        if not valid or count != np.floor(count) or count < 1:
            return BAD_COUNT, frame, place, line, line
        if count != num_atoms:
            return OTHER_SIZE, frame, place, line, line

        at = stop + 1
        stop = _line_end(text, at)
        if stop == end:
            return END, frame, place, line, line
        word = stop
        while word > at and text[word - 1] <= 32:
            word -= 1
        last = word
        while word > at and text[word - 1] > 32 and text[word - 1] != _EQUALS:
            word -= 1
        at, energies[frame], valid = _read_number(text, word, last)
        if not valid or at != last:
            return BAD_ENERGY, frame, place, line, line + 1

        for atom in range(num_atoms):
            at = stop + 1
            stop = _line_end(text, at)
            if stop == end:
                return END, frame, place, line, line
            while at < stop and text[at] <= 32:
                at += 1
            element = _element(text, at, stop)
            if element == 0:
                return BAD_ATOM, frame, place, line, line + 2 + atom
            z[frame, atom] = element
            at += 1
            for axis in range(3):
                while at < stop and text[at] <= 32:
                    at += 1
                at, pos[frame, atom, axis], valid = _read_number(text, at, stop)
                if not valid or (at < stop and text[at] > 32):
                    return BAD_POSITION, frame, place, line, line + 2 + atom
        place = stop + 1
        line += num_atoms + 2
        frame += 1


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def _line_end(text: Bytes, at: int) -> int:
    """Return where the line ends, or the end of the text if its end is not there yet."""
    while at < text.size and text[at] != _NEWLINE:
        at += 1
    return at


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def _element(text: Bytes, at: int, stop: int) -> int:
    """Return the atomic number of a one-letter word, 0 if it is not one of water's."""
    if at + 1 >= stop or text[at + 1] > 32:
        return 0
    letter = text[at]
    if letter == ord("O") or letter == ord("o") or letter == ord("8"):
        return 8
    if letter == ord("H") or letter == ord("h") or letter == ord("1"):
        return 1
    return 0


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def _read_number(text: Bytes, at: int, stop: int) -> Any:
    """Return where a decimal number ends, its value, and whether there is one.

    Up to 15 digits the value is the nearest float64, beyond that perhaps the next but one.
    """
    negative = False
    if at < stop and (text[at] == _MINUS or text[at] == _PLUS):
        negative = text[at] == _MINUS
        at += 1
    digits = 0
    mantissa = 0
    power = 0
    seen = False
    fraction = False
    while at < stop:
        if text[at] == _POINT and not fraction:
            fraction = True
        elif _ZERO <= text[at] <= _NINE:
            seen = True
            if digits < _MAX_DIGITS:
                mantissa = 10 * mantissa + (text[at] - _ZERO)
                digits += mantissa > 0
                power -= fraction
            else:
                power += not fraction
        else:
            break
        at += 1
    # e, E, and d, D as Fortran writes double precision
    if seen and at < stop and text[at] | 32 in (ord("e"), ord("d")):
        at += 1
        falling = False
        if at < stop and (text[at] == _MINUS or text[at] == _PLUS):
            falling = text[at] == _MINUS
            at += 1
        exponent = 0
        seen = False
        while at < stop and _ZERO <= text[at] <= _NINE:
            seen = True
            exponent = min(10 * exponent + (text[at] - _ZERO), 9999)
            at += 1
        power += -exponent if falling else exponent
    value = float(mantissa)
    while power < 0 and value != 0.0:
        step = min(-power, _MAX_EXACT_POWER)
        value /= _TENS[step]
        power += step
    while power > 0 and value < np.inf and value != 0.0:
        step = min(power, _MAX_EXACT_POWER)
        value *= _TENS[step]
        power -= step
    return at, -value if negative else value, seen and value < np.inf
