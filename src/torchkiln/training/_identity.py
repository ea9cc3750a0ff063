"""What differs between the settings of a checkpoint and those of now, for a message."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def describe_changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """Return all changes by name, in one line; "" if there is none."""
    return "; ".join(
        f"{name} was {before.get(name)!r} and is {now.get(name)!r}"
        for name in sorted(before.keys() | now.keys())
        if before.get(name) != now.get(name)
    )
