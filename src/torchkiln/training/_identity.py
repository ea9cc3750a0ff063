"""What a resumed run must share with the one that was saved."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from torchkiln.core import Options, OptionsError

_OPTIONS = (
    "device_iterations",
    "gradient_accumulation",
    "replication_factor",
    "reduction",
    "precision",
)


def describe_changes(
    before: Mapping[str, Any],
    now: Mapping[str, Any],
    form: str = "{name} was {before!r} and is {now!r}",
) -> str:
    """Return all changes by dotted name, in one line; "" if there is none.

    Args:
        before: What was.
        now: What is.
        form: How one change is said.
    """
    before, now = flatten_identity(before), flatten_identity(now)
    return "; ".join(
        form.format(name=name, before=before.get(name), now=now.get(name))
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
        if _has_numbers_for_keys(value):
            raise OptionsError(
                f"{what} cannot be kept in a checkpoint: {name} is {value!r}; use ExponentialLR, "
                "CosineAnnealingLR or ReduceLROnPlateau"
            )
    return result


def _has_numbers_for_keys(value: Any) -> bool:
    """Tell whether JSON would give strings back for keys that are none, however deep they are."""
    if isinstance(value, Mapping):
        keys_are_kept = all(isinstance(key, str) for key in value)
        return not keys_are_kept or any(map(_has_numbers_for_keys, value.values()))
    return isinstance(value, list | tuple) and any(map(_has_numbers_for_keys, value))


def identify_optimizer(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Return the kind of an optimiser and the numbers that it was made with."""
    numbers = to_kept("the numbers of the optimizer", optimizer.defaults)
    return {"kind": type(optimizer).__name__, **numbers}


def identify_options(options: Options) -> dict[str, Any]:
    """Return the options that decide what is computed, not how."""
    values = options.to_dict()
    return {name: values[name] for name in _OPTIONS}


def flatten_identity(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return everything in an identity by dotted name."""
    return dict(_flatten(values))


def _flatten(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _flatten(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value
