"""Programs in forked children: on one thread, as the others do not exist there."""

from __future__ import annotations

import ctypes
import functools
import os
import sys

# GNU's OpenMP, which torch brings along. Others find out by themselves that they were forked.
_LIBRARY = "libgomp.so.1"


@functools.cache
def survive_forks() -> None:
    """Let children that are forked from now on compute with one thread each.

    A fork copies the calling thread only. GNU's OpenMP does not notice, hands work to threads that
    it had before, and waits for them for ever; native code names its number of threads itself, so
    that `torch.set_num_threads(1)` in the child is not enough.
    """
    if not sys.platform.startswith("linux"):
        return
    try:
        openmp = ctypes.CDLL(_LIBRARY, mode=os.RTLD_NOLOAD | os.RTLD_LAZY)
    except OSError:
        return  # torch was built with another one
    os.register_at_fork(after_in_child=lambda: openmp.omp_set_max_active_levels(0))
