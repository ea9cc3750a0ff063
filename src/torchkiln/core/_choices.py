"""One of several values, given by the caller as itself or by its name."""

from __future__ import annotations

import enum
import reprlib
from collections.abc import Iterable
from typing import Any, TypeVar

from torchkiln.core._errors import OptionsError
from torchkiln.core._near_miss import near_misses

Choice = TypeVar("Choice")


def to_choice(
    choices: Iterable[Choice], value: Any, name: str, error: type[Exception] = OptionsError
) -> Choice:
    """Return the one of `choices` that `value` is or names.

    Args:
        choices: An enum, some of its members (named by their values, in small or capital letters),
            or texts.
        value: What the caller gave.
        name: What the caller calls it.
        error: Raised if it is none of them; the message names value, choices and a near match.
    """
    known = list(choices)
    for choice in known:
        if value is choice or _names(value, choice):
            return choice
    names = [_name(choice) for choice in known]
    raise error(
        f"{name} must be one of {', '.join(map(repr, names))}; got {shown(value)}"
        f"{_near_match(value, names)}"
    )


def shown(value: Any) -> str:
    """Return a value as it may stand in an error: a nested one can be endless."""
    text = reprlib.repr(value)
    return text if len(text) <= 100 else f"{text[:100]}..."


def _names(value: Any, choice: Any) -> bool:
    if not isinstance(value, str):
        return False
    return _name(choice) == (value.lower() if isinstance(choice, enum.Enum) else value)


def _name(choice: Any) -> str:
    return str(choice.value if isinstance(choice, enum.Enum) else choice)


def _near_match(value: Any, known: Iterable[str]) -> str:
    if not isinstance(value, str):
        return ""
    close = near_misses(value, known)
    return f"; did you mean {close[0]!r}?" if close else ""
