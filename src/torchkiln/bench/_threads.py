"""One thread policy for a benchmark: as many threads as cores, each kept on its own."""

from __future__ import annotations

import os
import sys


def pin_threads(num_threads: int | None = None) -> int:
    """Fix and pin OpenMP's threads; call it before torch is imported.

    Unpinned threads on a busy machine can be many times slower and make every figure noise.
    """
    if "torch" in sys.modules:
        raise RuntimeError("pin_threads must be called before torch is imported")
    available = sorted(os.sched_getaffinity(0))
    count = num_threads or len(available)
    os.environ["OMP_NUM_THREADS"] = str(count)
    os.environ["MKL_NUM_THREADS"] = str(count)
    os.environ["OMP_PROC_BIND"] = "true"
    os.environ["GOMP_CPU_AFFINITY"] = " ".join(str(core) for core in available[:count])
    return count
