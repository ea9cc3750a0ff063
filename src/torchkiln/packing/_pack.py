"""From sizes to a plan."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from torchkiln.core import OptionsError
from torchkiln.packing._algorithms import AlgorithmName, find_algorithm
from torchkiln.packing._oversize import Oversize, find_candidates, warn_skipped
from torchkiln.packing._plan import PackPlan
from torchkiln.packing._sizes import SizeTable, capacities, read_slots
from torchkiln.packing._slots import choose_slots


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
    find_algorithm(algorithm)  # choosing slots takes time, so a misspelt name is said before
    if slots == "auto":
        slots = choose_slots(sizes, nodes=target_nodes, graphs=target_graphs, reserve=reserve)
    elif not isinstance(slots, Mapping):
        raise OptionsError(f"slots must be a dict by axis or 'auto', got {slots!r}")
    elif target_nodes is not None or target_graphs is not None:
        raise OptionsError("targets choose slots: pass slots='auto', or leave the targets out")
    plan = plan_packs(
        table,
        slots,
        algorithm=algorithm,
        seed=seed,
        epoch=epoch,
        oversize=oversize,
        reserve=reserve,
    )
    warn_skipped(plan, table)
    return plan


def plan_packs(
    table: SizeTable,
    slots: Mapping[str, int],
    *,
    algorithm: str,
    seed: int | None,
    epoch: int,
    oversize: Oversize,
    reserve: int = 1,
) -> PackPlan:
    """Do what `pack` does, but say nothing about graphs that are skipped."""
    chosen = find_algorithm(algorithm)
    slots = read_slots(slots, table.axes, reserve)
    candidates = find_candidates(table, slots, reserve=reserve, oversize=oversize)
    order = candidates.graphs
    random = None if seed is None else shuffler(seed, epoch)
    if random is not None:
        order = random.permutation(order)
    stream = np.take(candidates.values, order, axis=0)  # several times as fast as values[order]
    positions, offsets = chosen.run(stream, capacities(slots, reserve))
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
        skipped=candidates.skipped,
        oversize=candidates.trimmed,
        algorithm=algorithm,
    )
    if random is not None and chosen.sorts_packs:
        plan = plan.take(random.permutation(len(plan)))
    return plan


def shuffler(seed: int, epoch: int) -> np.random.Generator:
    """Return what shuffles the graphs of an epoch."""
    if seed < 0 or epoch < 0:
        raise OptionsError(f"seed and epoch must not be negative, got {seed} and {epoch}")
    return np.random.default_rng([seed, epoch])
