"""Graphs that fit no pack: an error, left out, or planned as if they were cut to the limit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from torchkiln.core import BatchTooLarge, OptionsError, warn_user
from torchkiln.packing._plan import PackPlan
from torchkiln.packing._sizes import GRAPHS, Integers, SizeTable, capacities, join_words

Oversize = Literal["error", "skip", "trim"]


def _no_graphs() -> Integers:
    return np.zeros(0, dtype=np.int64)


@dataclass(frozen=True, slots=True)
class Candidates:
    """What is to be planned.

    Args:
        graphs: Indices of the graphs, in the order of the dataset.
        values: What every graph of the dataset takes of each axis, 'graphs' last.
        skipped: Graphs that fit no pack and are left out.
        trimmed: Graphs that are planned as if they were cut to the limit.
    """

    graphs: Integers
    values: Integers
    skipped: Integers = field(default_factory=_no_graphs)
    trimmed: Integers = field(default_factory=_no_graphs)


def find_candidates(
    table: SizeTable, slots: Mapping[str, int], *, reserve: int, oversize: Oversize
) -> Candidates:
    """Return what is to be planned for packs of `slots`, which `read_slots` checked.

    Raises:
        BatchTooLarge: A graph fits no pack and `oversize` is 'error'.
        OptionsError: `oversize` is none of the three.
    """
    limits = capacities(slots, reserve)
    values = table.with_graphs()
    too_large = (values > limits).any(axis=1)
    everything = np.arange(len(table))
    if not too_large.any():
        return Candidates(everything, values)
    culprits = np.flatnonzero(too_large)
    if oversize == "error":
        raise BatchTooLarge(_explain(table, culprits, slots, limits, reserve))
    if oversize == "skip":
        return Candidates(np.flatnonzero(~too_large), values, skipped=culprits)
    if oversize == "trim":
        return Candidates(everything, np.minimum(values, limits), trimmed=culprits)
    raise OptionsError(f"oversize must be 'error', 'skip' or 'trim', got {oversize!r}")


def warn_skipped(plan: PackPlan, table: SizeTable) -> None:
    """Say which graphs a plan leaves out, if any."""
    if not len(plan.skipped):
        return
    first = int(plan.skipped[0])
    warn_user(
        f"{len(plan.skipped):,} of {len(table):,} graphs fit no pack of "
        f"{join_words(f'{size:,} {axis}' for axis, size in plan.slots.items())} and were "
        f"skipped; the first is graph {first} with {table.describe(first)}"
    )


def _explain(
    table: SizeTable, culprits: Integers, slots: Mapping[str, int], limits: Integers, reserve: int
) -> str:
    first = int(culprits[0])
    largest = table.values[culprits].max(axis=0)
    over = [
        (axis, int(limit))
        for axis, size, limit in zip(table.axes, table.values[first], limits, strict=False)
        if size > limit
    ]
    held = join_words(f"{limit:,} {axis}" for axis, limit in over)
    needed = {
        axis: max(int(size) + reserve, slots[axis])
        for axis, size in zip(table.axes, largest, strict=True)
    }
    others = f" ({len(culprits) - 1:,} more are too large)" if len(culprits) > 1 else ""
    return (
        f"graph {first} has {table.describe(first)}, but a pack holds {held}{others}; "
        f"raise slots to {needed | {GRAPHS: slots[GRAPHS]}}, pass oversize='skip' or 'trim', or "
        "give giants batches of their own with split_giants"
    )
