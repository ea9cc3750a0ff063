"""Which part of a value cannot be sent to another process."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torchkiln.data._arena import pack

_MAX_DEPTH = 20


def find_unpicklable(value: Any, name: str) -> str | None:
    """Return the innermost part that cannot be pickled, with its type and the reason.

    None if `value` can be pickled. `name` is what messages call it, such as "dataset".
    """
    reason = _why_not(value)
    if reason is None:
        return None
    for _ in range(_MAX_DEPTH):
        for part, part_name in _parts(value, name):
            part_reason = _why_not(part)
            if part_reason is not None:
                value, name, reason = part, part_name, part_reason
                break
        else:
            break
    kind = type(value)
    return f"{name}, of type {kind.__module__}.{kind.__qualname__} ({reason})"


def _why_not(value: Any) -> str | None:
    try:
        pack(value)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None


def _parts(value: Any, name: str) -> Iterator[tuple[Any, str]]:
    if isinstance(value, dict):
        for key, part in value.items():
            yield part, f"{name}[{key!r}]"
    elif isinstance(value, list | tuple | set | frozenset):
        for index, part in enumerate(value):
            yield part, f"{name}[{index}]"
    elif not isinstance(value, type):
        for attribute, part in getattr(value, "__dict__", {}).items():
            yield part, f"{name}.{attribute}"
