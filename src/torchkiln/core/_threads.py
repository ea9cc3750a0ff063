"""One thread policy for a benchmark: as many threads as cores, each kept on its own."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator

from torchkiln.core import OptionsError

# Those of the process before its main thread was pinned; empty: it was not.
_cores_before: set[int] = set()


def pin_threads(num_threads: int | None = None) -> int:
    """Fix and pin OpenMP's threads; call it before torch is imported.

    Unpinned threads on a busy machine can be many times slower and make every figure noise.
    OpenMP pins the main thread, too, and forked processes would inherit its single core: those may
    use all cores again.

    Raises:
        OptionsError: There are fewer cores than threads.
    """
    if "torch" in sys.modules:
        raise RuntimeError("pin_threads must be called before torch is imported")
    available = sorted(usable_cores())
    count = num_threads or len(available)
    if count > len(available):
        raise OptionsError(
            f"threads must be at most {len(available)}, the cores that this process may use, got "
            f"{count}; leave it out to use all of them"
        )
    os.environ["OMP_NUM_THREADS"] = str(count)
    os.environ["MKL_NUM_THREADS"] = str(count)
    os.environ["OMP_PROC_BIND"] = "true"
    os.environ["GOMP_CPU_AFFINITY"] = " ".join(str(core) for core in available[:count])
    if not _cores_before:
        _cores_before.update(available)
        os.register_at_fork(after_in_child=_leave_the_core)
    return count


def usable_cores() -> set[int]:
    """Return the cores that the process was given, whatever its main thread is pinned to."""
    return set(_cores_before) or os.sched_getaffinity(0)


@contextlib.contextmanager
def on_all_cores() -> Iterator[None]:
    """Let threads that are started meanwhile use every core, not that of the main thread only."""
    if not hasattr(os, "sched_setaffinity"):  # macOS
        yield
        return
    pinned_to = os.sched_getaffinity(0)
    os.sched_setaffinity(0, usable_cores())
    try:
        yield
    finally:
        os.sched_setaffinity(0, pinned_to)


def _leave_the_core() -> None:
    with contextlib.suppress(OSError):  # the cores may have been taken away meanwhile
        os.sched_setaffinity(0, _cores_before)
