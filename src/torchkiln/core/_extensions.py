"""Which higher room serves a library that lower rooms know nothing of.

A program may pass objects of a library, or use its layers, without ever importing our room for it.
So a lower room asks here before it needs such a room, which is imported as soon as the library is
loaded and registers itself. A recording of the whole run is asked for by the environment. This is
the one place where a lower room names a higher one.
"""

from __future__ import annotations

import enum
import importlib
import os
import sys
from typing import Any


class Extends(enum.Enum):
    """What an extension registers itself with."""

    CONTAINERS = "containers"  # of tensors: `torchkiln.data.register_container`
    CAPTURE = "capture"  # of a forward: `torchkiln.core.add_capture_context`


# By what is extended: the loaded library that calls for an extension, and our module for it.
EXTENSIONS = {
    Extends.CONTAINERS: {
        "torch_geometric.data": "torchkiln.graphs._containers",
        "transformers.cache_utils": "torchkiln.data._transformers_caches",
    },
    Extends.CAPTURE: {"torch_geometric.nn": "torchkiln.graphs.layers"},
}

# Asked on every call of a program, so what is imported already is not looked at again.
_waiting = {what: dict(modules) for what, modules in EXTENSIONS.items()}


def load_extensions(what: Extends) -> None:
    """Import the extensions of `what` that loaded libraries call for."""
    waiting = _waiting[what]
    for library in [name for name in waiting if name in sys.modules]:
        importlib.import_module(waiting[library])
        # Only now: an import that failed is tried, and fails, again.
        waiting.pop(library, None)


# Variables that ask for a recording of what a run does: the user's, and that of the process which
# started this one. `begin()` of the module reads them.
RECORDER_VARIABLES = ("PVTI_OPTIONS", "TORCHKILN_TRACE")
RECORDER = "torchkiln.profiling.system._environment"


def load_recorder() -> None:
    """Begin to record if the environment says so."""
    if any(os.environ.get(name) for name in RECORDER_VARIABLES):
        importlib.import_module(RECORDER).begin()


# What a lower room offers under a name of its own, although a higher room does it: a method of a
# class that users hold. By the name: our module, and what it calls it.
PROVIDED = {
    "profile": ("torchkiln.profiling.graph._profile", "profile_program"),
    "profile automatically": ("torchkiln.profiling.graph._automatic", "watch_program"),
}


def provided(name: str) -> Any:
    """Return what a higher room provides under this name."""
    module, attribute = PROVIDED[name]
    return getattr(importlib.import_module(module), attribute)
