"""What libraries need switched on while a program records a forward.

The runtime knows nothing of graph libraries, and they know nothing of the runtime: they meet here.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from torchkiln.core._extensions import Extends, load_extensions

# Called with the module whose forward is about to be recorded.
CaptureContext = Callable[[Any], AbstractContextManager[Any]]

_contexts: list[CaptureContext] = []


def add_capture_context(context: CaptureContext) -> Callable[[], None]:
    """Enter `context(module)` around every capture; the returned function takes it off again."""
    _contexts.append(context)
    return lambda: _contexts.remove(context)


def capture_contexts() -> tuple[CaptureContext, ...]:
    """Return the contexts to enter, those of extensions that loaded libraries call for included."""
    load_extensions(Extends.CAPTURE)
    return tuple(_contexts)
