"""Two plans for heavy-tailed data: one for ordinary graphs, one for the giants among them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from torchkiln.core import OptionsError
from torchkiln.packing._algorithms import AlgorithmName
from torchkiln.packing._pack import pack
from torchkiln.packing._plan import PackPlan
from torchkiln.packing._sizes import GRAPHS, Integers, SizeTable, capacities, read_slots
from torchkiln.packing._slots import choose_slots, graphs_asked

Flags = NDArray[np.bool_]

# Ordinary graphs offered to the packs of giants, beyond what their average room takes: some
# packs need more than the average, and the last one should be full too.
_SURPLUS = 1.5


def split_giants(
    sizes: Mapping[str, ArrayLike],
    *,
    nodes: int | None = None,
    graphs: int | None = None,
    slots: Mapping[str, int] | None = None,
    giant_slots: Mapping[str, int] | None = None,
    algorithm: AlgorithmName = "best_fit",
    seed: int | None = None,
    epoch: int = 0,
    reserve: int = 1,
) -> tuple[PackPlan, PackPlan]:
    """Plan ordinary graphs in packs of the size asked for, and giants in larger ones.

    A giant is a graph that does not fit an ordinary pack. Its packs are just large enough for the
    largest, and ordinary graphs fill the room beside it; so both plans waste little, and together
    they hold every graph once. The two kinds of batches have two shapes, hence two programs. If
    the larger packs are affordable, one plan with `choose_slots` for the largest graph is simpler
    and packs as well.

    Args:
        sizes: How much each graph takes, one array per axis.
        nodes: At most how many node slots an ordinary pack should have.
        graphs: About how many graphs an ordinary pack should hold.
        slots: Slots of ordinary packs, instead of a target.
        giant_slots: Slots of packs with giants. Chosen slots depend on the sizes only, so they are
            the same in every epoch; pass those of the first plans to save the time of choosing.
        algorithm: As in `pack`, for the ordinary packs.
        seed: As in `pack`.
        epoch: As in `pack`.
        reserve: As in `pack`.

    Returns:
        The plan of ordinary packs, and the plan of packs with a giant (without packs if there is
        no giant).
    """
    table = SizeTable.read(sizes)
    if len(table) == 0:
        raise OptionsError("there are no graphs to plan: sizes are empty")
    if slots is None:
        ordinary = np.flatnonzero(~_find_giants(table, nodes, graphs, reserve))
        ordinary_slots = choose_slots(
            _subset(table, ordinary), nodes=nodes, graphs=graphs, reserve=reserve
        )
    elif nodes is not None or graphs is not None:
        raise OptionsError("nodes and graphs choose slots: give a target or slots, not both")
    else:
        ordinary_slots = dict(slots)
    ordinary_slots = read_slots(ordinary_slots, table.axes, reserve)
    limits = capacities(ordinary_slots, reserve)
    giant = np.asarray((table.values > limits[:-1]).any(axis=1))
    giants, others = np.flatnonzero(giant), np.flatnonzero(~giant)
    if len(others) == 0:
        raise OptionsError(f"no graph fits a pack of {ordinary_slots}; ask for larger packs")
    if len(giants) == 0:
        plan = pack(
            sizes, ordinary_slots, algorithm=algorithm, seed=seed, epoch=epoch, reserve=reserve
        )
        return plan, plan.take([])

    if giant_slots is None:
        giant_slots = _slots_of_giants(table, giants, others, reserve)
    giant_slots = read_slots(giant_slots, table.axes, reserve)
    if seed is not None:
        # (seed, epoch) alone shuffles the ordinary plan; this choice must not depend on it.
        random = np.random.default_rng([seed, epoch, 1])
        giants, others = random.permutation(giants), random.permutation(others)
    stream = _interleave(table, giants, others, capacities(giant_slots, reserve))
    mixed = _renumber(pack(_subset(table, stream), giant_slots, reserve=reserve), stream)
    with_giants = mixed.take([i for i, members in enumerate(mixed) if giant[members].any()])
    rest = np.setdiff1d(others, with_giants.indices)
    plan = pack(
        _subset(table, rest),
        ordinary_slots,
        algorithm=algorithm,
        seed=seed,
        epoch=epoch,
        reserve=reserve,
    )
    return _renumber(plan, rest), with_giants


def _find_giants(table: SizeTable, nodes: int | None, graphs: int | None, reserve: int) -> Flags:
    """Return which graphs exceed a pack that is sized for the average of the others."""
    giant: Flags = np.zeros(len(table), dtype=bool)
    while True:
        ordinary = table.values[~giant]
        if len(ordinary) <= len(table) / 2:
            raise OptionsError("more than half of the graphs would be giants; ask for larger packs")
        num_graphs = graphs_asked(SizeTable(table.axes, ordinary), graphs, nodes, {}, reserve)
        # Without the giants the mean falls and packs shrink, so the next round may find more.
        found = (table.values > np.ceil(num_graphs * ordinary.mean(axis=0))).any(axis=1)
        found |= giant
        if (found == giant).all():
            return giant
        giant = found


def _slots_of_giants(
    table: SizeTable, giants: Integers, others: Integers, reserve: int
) -> dict[str, int]:
    """Return slots that hold the largest giant, and are full on all axes with an average one.

    An average pack is one giant and as many ordinary graphs as it takes to need, on every axis,
    what the largest giant needs. Where giants are denser than others, that gives packs more nodes
    than the largest has, instead of edges that are never used.
    """
    largest = table.values[giants].max(axis=0)
    mean_giant = table.values[giants].mean(axis=0)
    mean_other = table.values[others].mean(axis=0)
    with np.errstate(divide="ignore", invalid="ignore"):
        beside = float(np.nanmax((largest - mean_giant) / mean_other))
    room = np.maximum(np.ceil(mean_giant + beside * mean_other).astype(np.int64), largest)
    slots = {axis: int(size) + reserve for axis, size in zip(table.axes, room, strict=True)}
    slots[GRAPHS] = len(table) + reserve
    stream = _interleave(table, giants, others, capacities(slots, reserve))
    trial = pack(_subset(table, stream), slots, reserve=reserve)
    is_giant = np.isin(stream, giants)
    most = max(len(graphs) for graphs in trial if is_giant[graphs].any())
    return {**slots, GRAPHS: most + reserve}


def _interleave(table: SizeTable, giants: Integers, others: Integers, limits: Integers) -> Integers:
    """Return the giants, each followed by as many ordinary graphs as fit beside it."""
    mean_giant = table.values[giants].mean(axis=0)
    mean_other = table.values[others].mean(axis=0)
    with np.errstate(divide="ignore", invalid="ignore"):
        rooms = (limits[:-1] - mean_giant) / mean_other
    beside = max(float(np.nanmin(rooms)), 0.0) * _SURPLUS
    # The last pack may hold any giant, and little else: offer it one more pack of ordinary graphs.
    pack_of_others = int(np.nanmin(limits[:-1] / np.maximum(mean_other, 1e-9)))
    count = min(math.ceil(beside * len(giants)) + pack_of_others, len(others))
    places = np.concatenate(
        [np.linspace(0, 1, len(giants), endpoint=False), np.linspace(0, 1, count)]
    )
    return np.concatenate([giants, others[:count]])[np.argsort(places, kind="stable")]


def _subset(table: SizeTable, graphs: Integers) -> dict[str, Integers]:
    return {axis: table.values[graphs, column] for column, axis in enumerate(table.axes)}


def _renumber(plan: PackPlan, graphs: Integers) -> PackPlan:
    """Return a plan of a subset with the indices of the whole."""
    return replace(plan, indices=graphs[plan.indices])
