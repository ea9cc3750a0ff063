"""One thread policy for a benchmark: as many threads as cores, each kept on its own."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator

from torchkiln.core._core_shares import own_slice, threads_of_user, within_quota
from torchkiln.core._errors import OptionsError
from torchkiln.core._launch import launched

# Those of the process before its main thread was pinned; empty: it was not. Of several processes on
# a host, its own share.
_cores_before: set[int] = set()
# Those that the process was given, with those of the other processes of the run.
_given: set[int] = set()
_is_chosen = False


def pin_threads(num_threads: int | None = None) -> int:
    """Fix and pin OpenMP's threads; call it before torch is imported.

    Unpinned threads on a busy machine can be many times slower and make every figure noise.
    OpenMP pins the main thread, too, and forked processes would inherit its single core: those may
    use all cores again. Processes that a launcher started divide the cores of their host.

    Args:
        num_threads: How many; None: as many as cores, or as OMP_NUM_THREADS says if a launcher
            started this process and the user set it.

    Raises:
        OptionsError: There are fewer cores than threads.
    """
    if "torch" in sys.modules:
        raise RuntimeError("pin_threads must be called before torch is imported")
    available = sorted(_given or os.sched_getaffinity(0))
    launch = launched()
    share = own_slice(available, launch)
    usual = threads_of_user() if launch is not None else None
    count = num_threads or usual or within_quota(share, launch.local_size or 1 if launch else 1)
    if num_threads is not None and count > len(available):
        raise OptionsError(
            f"threads must be at most {len(available)}, the cores that this process may use, got "
            f"{count}; leave it out to use all of them"
        )
    if count > len(share):
        # Some are shared with other processes; they begin at different ones.
        begin = available.index(share[0])
        share = [available[(begin + i) % len(available)] for i in range(min(count, len(available)))]
    os.environ["OMP_NUM_THREADS"] = str(count)
    os.environ["MKL_NUM_THREADS"] = str(count)
    os.environ["OMP_PROC_BIND"] = "true"
    os.environ["GOMP_CPU_AFFINITY"] = " ".join(str(core) for core in share[:count])
    if not _cores_before:
        os.register_at_fork(after_in_child=_leave_the_core)
    _given.update(available)
    _cores_before.clear()
    _cores_before.update(share)
    keep_threads()
    return count


def keep_threads() -> None:
    """Say that the number of threads was chosen, so that nobody divides the cores later."""
    global _is_chosen
    _is_chosen = True


def threads_are_chosen() -> bool:
    """Whether somebody said how many threads this process has."""
    return _is_chosen or threads_of_user() is not None


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
