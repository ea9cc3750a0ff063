"""What becomes of memory that a step frees: the next one takes it, unless it is too much."""

from __future__ import annotations

import ctypes
import functools
import os
import sys
from typing import Any

import psutil

# From <malloc.h>.
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
_LARGEST = 2**31 - 1
# The most that malloc takes for a small piece where nobody tells it.
_USUAL = 2**25
# Keeping pieces of all sizes leaves holes: programs took 35 to 75 % more than they need at once.
# That is no matter while the process is small, that is below this share of the machine's memory.
_SMALL_SHARE = 1 / 16
# Where a model is divided because memory is short: pieces from here on leave no holes.
_SMALL_IN_A_STAGE = 2**22
# Whoever sets one of these has decided already.
_VARIABLES = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES")


def keep_freed_memory_if_small() -> None:
    """Keep what steps free if the process never was large; else let it go, as malloc does.

    To be called after the first step of a program, which shows how much memory it takes.
    """
    if not sys.platform.startswith("linux") or give_back_freed_memory.cache_info().currsize:
        return
    import resource  # there is none on Windows

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    if peak < _SMALL_SHARE * psutil.virtual_memory().total:
        keep_freed_memory()
    elif keep_freed_memory.cache_info().currsize:
        _let_go_of_large_pieces()


@functools.cache
def keep_freed_memory() -> None:
    """Let the process keep the memory that tensors on the CPU free, up to 2 GB apiece.

    Every step needs the same memory again. The C library of Linux gives large pieces back to the
    system, which then has to clear each page anew: a sixth to a third of the time of a step with
    packs of 9,000 atoms. Does nothing elsewhere, or where the environment says what malloc is to
    do.
    """
    _tell_malloc(_LARGEST)


@functools.cache
def give_back_freed_memory() -> None:
    """Let the process give back all but small pieces, from now on, however small it is.

    For a stage of a pipeline. It keeps the values of several micro-batches, and frees them in
    another order than it made them: where memory was kept, a process took a third more.
    """
    _tell_malloc(_SMALL_IN_A_STAGE)


@functools.cache
def _let_go_of_large_pieces() -> None:
    _tell_malloc(_USUAL)


def _tell_malloc(small_up_to: int) -> None:
    mallopt = _mallopt()
    if mallopt is not None:
        mallopt(_TRIM_THRESHOLD, _LARGEST)
        mallopt(_MMAP_THRESHOLD, small_up_to)


def _mallopt() -> Any:
    """Return the function that tells malloc what to do, None where it is not ours to tell."""
    if any(name in os.environ for name in _VARIABLES):
        return None
    return getattr(ctypes.CDLL(None), "mallopt", None)
