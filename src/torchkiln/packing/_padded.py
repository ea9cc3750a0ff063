"""Packs of a fixed number of graphs, whatever their sizes."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from torchkiln.core import BatchTooLarge
from torchkiln.packing._oversize import Oversize, find_candidates
from torchkiln.packing._pack import shuffler
from torchkiln.packing._plan import PackPlan
from torchkiln.packing._sizes import SizeTable, capacities, read_slots

_RESERVE = 1


def plan_padded(
    table: SizeTable,
    slots: Mapping[str, int],
    *,
    batch_size: int,
    seed: int | None,
    epoch: int,
    oversize: Oversize,
) -> PackPlan:
    """Divide graphs into packs of `batch_size`; the other arguments are those of `pack`.

    Raises:
        BatchTooLarge: Graphs that would share a pack are too large for it.
    """
    slots = read_slots(slots, table.axes, _RESERVE)
    candidates = find_candidates(table, slots, reserve=_RESERVE, oversize=oversize)
    order = candidates.graphs
    if seed is not None:
        order = shuffler(seed, epoch).permutation(order)
    offsets = np.append(np.arange(0, len(order), batch_size), len(order))
    used = {}
    for column, (axis, room) in enumerate(
        zip(table.axes, capacities(slots, _RESERVE), strict=False)
    ):
        used[axis] = np.add.reduceat(candidates.values[order, column], offsets[:-1])
        over = np.flatnonzero(used[axis] > room)
        if len(over):
            raise BatchTooLarge(
                f"{batch_size} graphs can have {used[axis][over[0]]} {axis}, but a batch "
                f"holds {slots[axis]}, of which one stays filler; lower batch_size, pass "
                "spec='auto', or use strategy='packed'"
            )
    return PackPlan(
        order,
        offsets,
        slots,
        used,
        skipped=candidates.skipped,
        oversize=candidates.trimmed,
        algorithm="padded",
    )
