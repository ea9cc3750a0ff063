"""Native helpers built before they are needed, all at the same time."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait

from torchkiln.core._threads import on_all_cores, usable_cores
from torchkiln.ops._native import (
    Order,
    is_built,
    is_source,
    keep_outcome,
    load_native,
    order_native,
)

# Told how many helpers are built, and how many there are to build.
Tell = Callable[[int, int], None]

# Looked at by this process already: they are loaded, or cannot be.
_prepared: set[str] = set()


def missing_natives(names: Iterable[str]) -> list[str]:
    """Return those helpers that have to be built, in order."""
    return [name for name in _unprepared(names) if not is_built(name)]


def prepare_natives(names: Iterable[str], tell: Tell | None = None) -> None:
    """Build the helpers that are missing, as many at a time as there are cores, and load all.

    A helper that cannot be built is left out, as `load_native` does: plain torch computes the same.

    Args:
        names: Of C and C++ files of this folder, without their endings.
        tell: Called at the beginning and whenever a helper is done, if there is something to build.
    """
    wanted = _unprepared(names)
    orders = [order for name in missing_natives(wanted) if (order := order_native(name))]
    if orders:
        _build_together(orders, tell or (lambda done, total: None))
    for name in wanted:
        load_native(name)
    _prepared.update(wanted)


def _unprepared(names: Iterable[str]) -> list[str]:
    # A program of another version may name helpers that are not there any more.
    return [name for name in sorted({*names} - _prepared) if is_source(name)]


def _build_together(orders: list[Order], tell: Tell) -> None:
    stopped = threading.Event()
    workers = min(len(orders), len(usable_cores()))
    tell(0, len(orders))
    # The main thread may be pinned to one core, which all that it starts would share.
    with contextlib.ExitStack() as stack:
        stack.enter_context(on_all_cores())
        pool = stack.enter_context(ThreadPoolExecutor(workers, thread_name_prefix="native-helper"))
        # Before the pool waits for its threads: an interrupt ends the compilers.
        stack.callback(stopped.set)
        running = {pool.submit(keep_outcome, order, stopped) for order in orders}
        while running:
            _, running = wait(running, return_when=FIRST_COMPLETED)
            tell(len(orders) - len(running), len(orders))
