"""Names of a package that are imported when they are first used."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any


def lazy_names(package: str, places: Mapping[str, str]) -> Callable[[str], Any]:
    """Return the `__getattr__` of a package.

    Args:
        package: Its full name.
        places: The full name of the module of each public name.
    """

    def get(name: str) -> Any:
        if name in places:
            return getattr(importlib.import_module(places[name]), name)
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return get
