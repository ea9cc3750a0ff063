"""Types of settings in plain words, for help texts and for errors."""

from __future__ import annotations

import enum
import types
import typing
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from torchkiln.core._near_miss import did_you_mean

_WORDS = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "text",
    Path: "a path",
    type(None): "null",
}


def choices_of(kind: Any) -> list[str]:
    """Return the words that a setting may have, if there are only certain ones; else nothing."""
    if kind is bool:
        return ["true", "false"]
    if kind is type(None):
        return ["null"]
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return [member.name for member in kind]
    if typing.get_origin(kind) is Literal:
        return [str(word) for word in typing.get_args(kind)]
    if _is_union(kind):
        parts = [choices_of(part) for part in typing.get_args(kind)]
        return [word for part in parts for word in part] if all(parts) else []
    return []


def words_for(kind: Any) -> str:
    """Return what a value of this type looks like: `a whole number or null`."""
    if choices := choices_of(kind):
        return _joined(choices)
    if kind in _WORDS:
        return _WORDS[kind]
    if _is_union(kind):
        return _joined(list(dict.fromkeys(words_for(part) for part in typing.get_args(kind))))
    origin = typing.get_origin(kind) or kind
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return "names with values"
    if isinstance(origin, type) and issubclass(origin, Sequence):
        (inner,) = typing.get_args(kind) or (str,)
        return f"a list such as [{_example(inner)}]"
    return "names with values"  # groups of settings, and options


def wrong_value(name: str, kind: Any, value: str) -> str:
    """Say on one line that a setting cannot have a value, and what it can have."""
    near = did_you_mean(value, choices_of(kind))
    return f"{name} must be {words_for(kind)}, got {value!r}{'; ' + near if near else ''}"


def _is_union(kind: Any) -> bool:
    return typing.get_origin(kind) in (typing.Union, types.UnionType)


def _joined(words: list[str]) -> str:
    return " or ".join(filter(None, [", ".join(words[:-1]), words[-1]]))


def _example(kind: Any) -> str:
    return {int: "8, 1, 1", float: "0.8, 0.1, 0.1"}.get(kind, "one, two")
