"""What surrounds every build: one at a time, with functions to call before and after it."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator

Hook = Callable[[], None]
_before: dict[object, Hook] = {}
_after: dict[object, Hook] = {}
# Held by whoever captures a step, of whichever program.
build_lock = threading.RLock()


def add_compile_hook(
    *, before: Hook | None = None, after: Hook | None = None
) -> Callable[[], None]:
    """Call `before` and `after` around every build, failed ones included.

    Returns:
        A function that removes them again.
    """
    key = object()
    if before is not None:
        _before[key] = before
    if after is not None:
        _after[key] = after

    def remove() -> None:
        _before.pop(key, None)
        _after.pop(key, None)

    return remove


@contextlib.contextmanager
def compile_hooks() -> Iterator[None]:
    """Run the registered functions around a build."""
    for hook in list(_before.values()):
        hook()
    try:
        yield
    finally:
        for hook in list(_after.values()):
            hook()
