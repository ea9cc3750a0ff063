"""Sizes of memory as people write them."""

from __future__ import annotations

import re

from torchkiln.core._errors import OptionsError

_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_SIZE = re.compile(r"\s*([0-9]*\.?[0-9]+)\s*([KMGT]?)(?:i?B)?\s*", re.IGNORECASE)


def parse_size(text: str) -> int:
    """Return the bytes of a size such as 8GB, 512M or 1.5 GiB; K, M, G, T are powers of 1024.

    Raises:
        OptionsError: It is no size, or a number without a unit: nobody means 8 bytes.
    """
    match = _SIZE.fullmatch(text)
    if match is None:
        raise OptionsError(f"{text!r} is not a size; write it like 8GB, 512MB or 1.5G")
    if match[1] == text.strip():
        raise OptionsError(f"the size {text} has no unit; write {text}GB, or {text}MB for less")
    return int(float(match[1]) * _UNITS[match[2].upper()])
