"""Flags before the parser sees them: switches that stand alone, and names that do not exist."""

from __future__ import annotations

import itertools
import re
import typing
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from torchkiln.core import OptionsError
from torchkiln.core._near_miss import did_you_mean

_NUMBER = re.compile(r"-\.?\d")
_TRUTHS = ("true", "false", "null")


def is_switch(kind: Any) -> bool:
    """Return whether a setting of this type is true or false, so that its flag may stand alone."""
    return kind is bool or bool in typing.get_args(kind)


def with_switch_values(
    args: Sequence[str], switches: Collection[str], *, words_may_follow: bool = False
) -> list[str]:
    """Let `--checkpoint` stand alone: the parser wants a value for every setting.

    Args:
        args: A command line.
        switches: Flags that are true or false, with their dashes.
        words_may_follow: Whether other words than true and false may follow such a flag, because
            the command takes words without a flag.

    Raises:
        OptionsError: Another word follows such a flag.
    """
    spelled = []
    for arg, following in itertools.pairwise([*args, ""]):
        spelled.append(arg)
        if arg in switches and following.lower() not in _TRUTHS:
            if following and not following.startswith("-") and not words_may_follow:
                raise OptionsError(f"{arg} takes true or false, got {following!r}")
            spelled.append("true")
    return spelled


def checked_flags(
    args: Iterable[str], known: Mapping[str, Any], *, groups: str = "", words_for: str = ""
) -> Iterator[str]:
    """Yield the arguments after comparing the names of flags with those that exist.

    Args:
        args: A command line in which every flag has a value, except `--help` and its like.
        known: The parser's table of flags.
        groups: Flags that begin so are left to the parser.
        words_for: The flag that words without a flag belong to. After `--`, all are such words.

    Raises:
        OptionsError: A flag does not exist or has no value, or a word belongs to no flag; the
            message says what was probably meant.
    """
    rest = iter(args)
    for arg in rest:
        flag, has_value, _ = arg.partition("=")
        if arg == "--" and words_for:
            yield from (f"{words_for}={word}" for word in rest)
        elif not is_flag(arg):
            if not words_for:
                raise OptionsError(f"{arg!r} belongs to no flag; flags begin with two dashes")
            yield f"{words_for}={arg}"
        elif flag not in known and not (groups and flag.startswith(groups)):
            raise OptionsError(f"unknown flag {flag}; {nearest_flag(flag, known)}")
        elif has_value or flag == "--print_config" or getattr(known.get(flag), "nargs", 1) == 0:
            yield arg
        else:
            value = next(rest, None)
            if value is None:
                raise OptionsError(f"{flag} needs a value behind it")
            # In one argument: a value may begin with a dash.
            yield f"{flag}={value}"


def is_flag(arg: str) -> bool:
    """Return whether an argument begins as flags do; -1 does not."""
    return arg.startswith("-") and len(arg) > 1 and not _NUMBER.match(arg)


def nearest_flag(flag: str, known: Iterable[str]) -> str:
    """Say what was probably meant by a flag that does not exist."""
    names = [name.removeprefix("--") for name in known if name.startswith("--")]
    names = [name for name in names if not name.endswith("+") and name != "print_shtab"]
    return did_you_mean(flag.lstrip("-"), names, before="--", otherwise="--help lists all of them")
