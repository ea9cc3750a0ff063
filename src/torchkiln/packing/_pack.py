"""From sizes to a plan."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from torchkiln.core import BatchTooLarge, OptionsError, warn_user
from torchkiln.packing._algorithms import AlgorithmName, find_algorithm
from torchkiln.packing._plan import PackPlan
from torchkiln.packing._sizes import (
    GRAPHS,
    Integers,
    SizeTable,
    capacities,
    join_words,
    read_slots,
)
from torchkiln.packing._slots import choose_slots

Oversize = Literal["error", "skip", "trim"]


def pack(
    sizes: Mapping[str, ArrayLike],
    slots: Mapping[str, int] | Literal["auto"],
    *,
    algorithm: AlgorithmName = "best_fit",
    seed: int | None = None,
    epoch: int = 0,
    oversize: Oversize = "error",
    reserve: int = 1,
    target_nodes: int | None = None,
    target_graphs: int | None = None,
) -> PackPlan:
    """Divide graphs into packs of one fixed size, every graph exactly once.

    The same arguments give the same plan, everywhere. Numba compiles the algorithm at the first
    call on a machine (seconds) and keeps the result.

    Args:
        sizes: How much each graph takes, one array per axis, such as 'nodes' and 'edges'.
        slots: Size of a pack on every axis and its number of 'graphs', filler included; or 'auto',
            to let `choose_slots` find them for one of the targets.
        algorithm: 'best_fit' fills packs from a window of waiting graphs; 'next_fit' keeps the
            order exactly; 'lpfhp' sees all graphs at once as a histogram of sizes, so graphs of
            rare sizes always meet the same others.
        seed: Shuffles the graphs, differently in each epoch; None takes them as they come.
        epoch: Which shuffle.
        oversize: What to do with a graph that fits no pack: raise 'error'; 'skip' it, with one
            warning; or plan it as if it were cut to the limit and list it in `plan.oversize`, so
            that collation will 'trim' it.
        reserve: Slots of each axis that stay free for filler.
        target_nodes: With slots 'auto': about how many nodes a pack should hold.
        target_graphs: With slots 'auto': about how many graphs a pack should hold.

    Raises:
        BatchTooLarge: A graph fits no pack and `oversize` is 'error'.
        OptionsError: Sizes, slots or options make no sense.
    """
    table = SizeTable.read(sizes)
    chosen = find_algorithm(algorithm)
    if slots == "auto":
        slots = choose_slots(sizes, nodes=target_nodes, graphs=target_graphs, reserve=reserve)
    elif not isinstance(slots, Mapping):
        raise OptionsError(f"slots must be a dict by axis or 'auto', got {slots!r}")
    elif target_nodes is not None or target_graphs is not None:
        raise OptionsError("targets choose slots: pass slots='auto', or leave the targets out")
    slots = read_slots(slots, table.axes, reserve)
    limits = capacities(slots, reserve)
    values = table.with_graphs()

    too_large = (values > limits).any(axis=1)
    left_out = np.zeros(0, dtype=np.int64)
    to_trim = np.zeros(0, dtype=np.int64)
    if too_large.any():
        culprits = np.flatnonzero(too_large)
        if oversize == "error":
            raise BatchTooLarge(_explain(table, culprits, slots, limits, reserve))
        if oversize == "skip":
            left_out = culprits
            warn_user(
                f"{len(culprits):,} of {len(table):,} graphs fit no pack of "
                f"{join_words(f'{size:,} {axis}' for axis, size in slots.items())} and were "
                f"skipped; the first is graph {culprits[0]} with {table.describe(culprits[0])}"
            )
        elif oversize == "trim":
            to_trim = culprits
            values = np.minimum(values, limits)
        else:
            raise OptionsError(f"oversize must be 'error', 'skip' or 'trim', got {oversize!r}")

    order = np.flatnonzero(~too_large) if len(left_out) else np.arange(len(table))
    random = None if seed is None else _generator(seed, epoch)
    if random is not None:
        order = random.permutation(order)
    stream = np.take(values, order, axis=0)  # several times as fast as values[order]
    positions, offsets = chosen.run(stream, limits)
    used = {
        axis: np.add.reduceat(np.take(stream[:, column], positions), offsets[:-1])
        if len(offsets) > 1
        else np.zeros(0, dtype=np.int64)
        for column, axis in enumerate(table.axes)
    }
    plan = PackPlan(
        order[positions],
        offsets,
        slots,
        used,
        skipped=left_out,
        oversize=to_trim,
        algorithm=algorithm,
    )
    if random is not None and chosen.sorts_packs:
        plan = plan.take(random.permutation(len(plan)))
    return plan


def _generator(seed: int, epoch: int) -> np.random.Generator:
    if seed < 0 or epoch < 0:
        raise OptionsError(f"seed and epoch must not be negative, got {seed} and {epoch}")
    return np.random.default_rng([seed, epoch])


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
