"""What libraries need switched on while a program records a forward.

The runtime knows nothing of graph libraries, and they know nothing of the runtime: they meet here.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

# Called with the module whose forward is about to be recorded.
CaptureContext = Callable[[Any], AbstractContextManager[Any]]

_contexts: list[CaptureContext] = []

# A program may use a library without ever importing our part for it: once the library is loaded,
# our part is imported and adds its contexts.
_PARTS = {"torch_geometric.nn": "torchkiln.graphs.layers"}


def add_capture_context(context: CaptureContext) -> Callable[[], None]:
    """Enter `context(module)` around every capture; the returned function takes it off again."""
    _contexts.append(context)
    return lambda: _contexts.remove(context)


def capture_contexts() -> tuple[CaptureContext, ...]:
    """Return the contexts to enter, those of parts that loaded libraries call for included."""
    for library, part in _PARTS.items():
        if library in sys.modules:
            importlib.import_module(part)
    return tuple(_contexts)
