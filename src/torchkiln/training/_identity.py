"""What a resumed run must share with the one that was saved."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from torchkiln.core import OptionsError


def describe_changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """Return all changes by dotted name, in one line; "" if there is none."""
    before, now = dict(_flatten(before)), dict(_flatten(now))
    return "; ".join(
        f"{name} was {before.get(name)!r} and is {now.get(name)!r}"
        for name in sorted(before.keys() | now.keys())
        if before.get(name) != now.get(name)
    )


def to_kept(what: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return `values` as JSON gives them back, if that is all there is to them.

    Raises:
        OptionsError: They hold something else.
    """
    try:
        result: dict[str, Any] = json.loads(json.dumps(values))
    except TypeError as error:
        raise OptionsError(f"{what} cannot be kept in a checkpoint: {error}") from None
    for name, value in values.items():
        # Keys that are numbers come back as strings.
        if isinstance(value, Mapping) and set(value) != set(result[name]):
            raise OptionsError(
                f"{what} cannot be kept in a checkpoint: {name} is {value!r}; use ExponentialLR, "
                "CosineAnnealingLR or ReduceLROnPlateau"
            )
    return result


def _flatten(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _flatten(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value
