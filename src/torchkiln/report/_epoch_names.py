"""Figures of an epoch under the names that files and logs give them: molecules, molecules_per_s."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from torchkiln.report._record import EpochRecord


def to_named(record: EpochRecord, counted: str) -> dict[str, Any]:
    """Return all fields; the counts are called after what is counted."""
    values: dict[str, Any] = {}
    for field in dataclasses.fields(record):
        name = field.name.replace("samples", counted) if "samples" in field.name else field.name
        values[name] = getattr(record, field.name)
    if not values["figures"]:
        del values["figures"]
    return values


def from_named(values: Mapping[str, Any], counted: str) -> EpochRecord:
    """Take what `to_named` gave."""
    names = {counted: "samples", f"{counted}_per_s": "samples_per_s"}
    return EpochRecord(**{names.get(name, name): value for name, value in values.items()})


def named_figures(record: EpochRecord, counted: str) -> dict[str, float]:
    """Return the numbers of an epoch for a log, without its own number and what is unknown."""
    values = {**to_named(record, counted), **record.figures}
    del values["epoch"]
    values.pop("figures", None)
    return {name: value for name, value in values.items() if value is not None}
