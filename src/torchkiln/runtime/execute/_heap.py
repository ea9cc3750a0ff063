"""What becomes of memory that a step frees: the next one takes it."""

from __future__ import annotations

import ctypes
import functools
import os
import sys

# From <malloc.h>.
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
_LARGEST = 2**31 - 1
# Whoever sets one of these has decided already.
_VARIABLES = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES")


@functools.cache
def keep_freed_memory() -> None:
    """Let the process keep the memory that tensors on the CPU free, up to 2 GB apiece.

    Every step needs the same memory again. The C library of Linux gives large pieces back to the
    system, which then has to clear each page anew: a sixth to a third of the time of a step with
    packs of 9,000 atoms. Does nothing elsewhere, or where the environment says what malloc is to
    do.
    """
    if not sys.platform.startswith("linux") or any(name in os.environ for name in _VARIABLES):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_TRIM_THRESHOLD, _LARGEST)
        mallopt(_MMAP_THRESHOLD, _LARGEST)
