"""Slots that waste least, found by planning on a sample."""

from __future__ import annotations

import math
from collections.abc import Mapping
from operator import itemgetter

import numpy as np
from numpy.typing import ArrayLike, NDArray

from torchkiln.core import OptionsError, warn_user
from torchkiln.packing._algorithms import find_algorithm
from torchkiln.packing._sizes import GRAPHS, Integers, SizeTable, join_words

# Packs a little smaller than asked for can waste less: five graphs of 100 nodes want 501 slots,
# not 512. Only a gain of this much is worth leaving the size that was asked for.
_SMALLER = (0.98, 0.96, 0.94, 0.92, 0.9)
_WORTH_A_CHANGE = 0.005
# Room beyond the average that the axes beside nodes get, because graphs differ in density.
_MARGINS = (1.0, 1.0025, 1.005, 1.01, 1.02, 1.04, 1.08, 1.15, 1.3)
# Slots per real node or edge at which packs need not grow beyond what the largest graph takes.
_WELL_FILLED = 1.05
_GROWTH_STEPS = 5
_SAMPLE_PACKS = 200
_SAMPLE_GRAPHS = (2_000, 20_000)
# One graph slot costs little, so almost no pack may end for want of it.
_GRAPHS_QUANTILE = 0.999
# How far beyond what average packs need slots may grow for the largest graph before we say so.
_WORTH_A_WARNING = 1.1

Floats = NDArray[np.float64]


def choose_slots(
    sizes: Mapping[str, ArrayLike],
    *,
    graphs: int | None = None,
    nodes: int | None = None,
    slots: Mapping[str, int] | None = None,
    reserve: int = 1,
    multiple_of: int = 1,
) -> dict[str, int]:
    """Return the slots of every axis that waste least for packs of about the size asked for.

    Plans a sample of the graphs with several candidates, which takes a fraction of a second, and
    takes the one whose slots, averaged over axes, are filled best. The largest graph always fits.
    If that takes packs much larger than asked for, all axes grow together, so that small graphs
    fill the room beside the large one, and a warning says so and names `split_giants`.

    Args:
        sizes: How much each graph takes, one array per axis.
        graphs: About how many graphs a pack should hold.
        nodes: At most how many node slots a pack should have, over all node types.
        slots: Slots that are already decided, by axis; they are kept.
        reserve: Slots of each axis that stay free for filler.
        multiple_of: Round chosen node and edge slots up to a multiple, such as 8.
    """
    table = SizeTable.read(sizes)
    if len(table) == 0:
        raise OptionsError("there are no graphs to choose slots for: sizes are empty")
    if multiple_of < 1:
        raise OptionsError(f"multiple_of must be at least 1, got {multiple_of}")
    fixed = dict(slots or {})
    unknown = [axis for axis in fixed if axis not in (*table.axes, GRAPHS)]
    if unknown:
        raise OptionsError(
            f"slots name {join_words(map(repr, unknown))}, which sizes do not have; axes are "
            f"{join_words((*table.axes, GRAPHS))}"
        )
    asked = graphs_asked(table, graphs, nodes, fixed, reserve)
    sample = _draw_sample(table, asked)
    candidates = _Candidates(table, sample, fixed, reserve, multiple_of)

    best = candidates.best_margin(asked)
    if graphs is None and not set(fixed) - {GRAPHS}:
        for scale in _SMALLER:
            result = candidates.best_margin(asked * scale)
            if result[0] < best[0] - _WORTH_A_CHANGE:
                best = result
    for scale in candidates.growth(asked):
        if best[0] < _WELL_FILLED:
            break
        best = min(best, candidates.best_margin(asked * scale), key=itemgetter(0))
    chosen = best[1]
    candidates.tighten(chosen)
    _report_giants(table, chosen, asked, fixed, reserve)
    return chosen


class _Candidates:
    """Slots to try, and what they cost on the sample."""

    def __init__(
        self,
        table: SizeTable,
        sample: Integers,
        fixed: Mapping[str, int],
        reserve: int,
        multiple_of: int,
    ) -> None:
        self._axes = table.axes
        self._mean: Floats = table.values.mean(axis=0)
        self._largest: Integers = table.values.max(axis=0)
        self._sample = sample
        self._fixed = fixed
        self._reserve = reserve
        self._multiple_of = multiple_of
        self._pack = find_algorithm("best_fit").run

    def best_margin(self, num_graphs: float) -> tuple[float, dict[str, int]]:
        """Return cost and slots of the best margin for packs of `num_graphs` average graphs."""
        return min((self._evaluate(num_graphs, margin) for margin in _MARGINS), key=itemgetter(0))

    def growth(self, num_graphs: float) -> list[float]:
        """Return factors up to where average packs are as large as the largest graph."""
        ratios = [
            largest / (num_graphs * mean)
            for axis, largest, mean in zip(self._axes, self._largest, self._mean, strict=True)
            if axis not in self._fixed and mean > 0
        ]
        most = max(ratios, default=1.0)
        return list(np.geomspace(1.0, most, _GROWTH_STEPS + 1)[1:]) if most > 1.0 else []

    def _evaluate(self, num_graphs: float, margin: float) -> tuple[float, dict[str, int]]:
        """Return cost and slots of packs for `num_graphs` average graphs."""
        chosen: dict[str, int] = {}
        for axis, mean, largest in zip(self._axes, self._mean, self._largest, strict=True):
            if axis in self._fixed:
                chosen[axis] = int(self._fixed[axis])
                continue
            room = num_graphs * mean * (1.0 if _is_nodes(axis) else margin)
            # 1e-9: a target that is a whole number of slots must stay one through a division.
            needed = max(math.ceil(room - 1e-9), int(largest)) + self._reserve
            chosen[axis] = self._rounded(needed)
        chosen[GRAPHS] = int(self._fixed.get(GRAPHS, len(self._sample) + self._reserve))
        return self._cost(chosen)[0], chosen

    def tighten(self, chosen: dict[str, int]) -> None:
        """Take away slots that no pack of the sample needs, and graph slots that few need."""
        cost, used = self._cost(chosen)
        for column, axis in enumerate(self._axes):
            if axis not in self._fixed:
                most = max(int(used[:, column].max()), int(self._largest[column]))
                chosen[axis] = min(chosen[axis], self._rounded(most + self._reserve))
        if GRAPHS not in self._fixed:
            counts = used[:, -1]
            # At least one, also where decided slots are too small for any: `pack` then names them.
            most = max(int(counts.max()), 1)
            enough = max(int(np.quantile(counts, _GRAPHS_QUANTILE, method="higher")), 1)
            chosen[GRAPHS] = enough + self._reserve
            if enough < most and self._cost(chosen)[0] > cost * (1 + _WORTH_A_CHANGE / 5):
                chosen[GRAPHS] = most + self._reserve

    def _rounded(self, size: int) -> int:
        return -(-size // self._multiple_of) * self._multiple_of

    def _cost(self, slots: Mapping[str, int]) -> tuple[float, Integers]:
        """Return slots per real node, edge, ..., averaged over axes, and what packs use."""
        limits = np.array(
            [max(slots[axis] - self._reserve, 0) for axis in (*self._axes, GRAPHS)], dtype=np.int64
        )
        fitting = self._sample[(self._sample <= limits).all(axis=1)]
        if len(fitting) == 0:
            return math.inf, np.zeros((1, len(limits)), dtype=np.int64)
        positions, offsets = self._pack(np.ascontiguousarray(fitting), limits)
        used = np.add.reduceat(fitting[positions], offsets[:-1], axis=0)
        # The last pack is a remainder: rare in a dataset, but not in a sample.
        full = used[:-1] if len(used) > 1 else used
        real = full.sum(axis=0)
        ratios = [
            len(full) * slots[axis] / real[column]
            for column, axis in enumerate(self._axes)
            if real[column]
        ]
        return float(np.mean(ratios)) if ratios else 1.0, used


def _is_nodes(axis: str) -> bool:
    """Tell whether an axis counts nodes, all of them ('nodes') or of one type ('nodes:atom')."""
    return axis.partition(":")[0] == "nodes"


def graphs_asked(
    table: SizeTable,
    graphs: int | None,
    nodes: int | None,
    fixed: Mapping[str, int],
    reserve: int,
) -> float:
    """Return how many average graphs a pack should hold, whichever way it was said."""
    mean = dict(zip(table.axes, table.values.mean(axis=0), strict=True))
    if graphs is not None and nodes is not None:
        raise OptionsError(
            f"graphs={graphs} and nodes={nodes} both say how large a pack is; give one of them"
        )
    if graphs is not None:
        if graphs < 1:
            raise OptionsError(f"graphs must be at least 1, got {graphs}")
        return float(graphs)
    if nodes is not None:
        kinds = [axis for axis in table.axes if _is_nodes(axis)]
        average = sum(mean[axis] for axis in kinds)
        if not average:
            raise OptionsError(
                f"sizes count no nodes (axes are {join_words(table.axes)}); say how many graphs a "
                "pack should hold: graphs=..."
            )
        if nodes <= reserve * len(kinds):
            raise OptionsError(
                f"nodes={nodes} leaves no node beside the reserve of {reserve}; give more"
            )
        return float((nodes - reserve * len(kinds)) / average)
    rooms = [
        (size - reserve) / mean[axis]
        for axis, size in fixed.items()
        if axis != GRAPHS and mean[axis] > 0
    ]
    if rooms:
        return max(float(min(rooms)), 1.0)
    if GRAPHS in fixed:
        return float(max(fixed[GRAPHS] - reserve, 1))
    raise OptionsError(
        "say how large a pack should be: nodes=512 (node slots), graphs=32 (graphs), or slots of "
        "an axis"
    )


def _draw_sample(table: SizeTable, asked: float) -> Integers:
    """Return rows of the table with the axis of graphs; the same for the same sizes."""
    low, high = _SAMPLE_GRAPHS
    count = min(max(int(_SAMPLE_PACKS * asked), low), max(high, int(8 * asked)), len(table))
    chosen = np.random.default_rng(0).permutation(len(table))[:count]
    return table.with_graphs()[chosen]


def _report_giants(
    table: SizeTable,
    chosen: Mapping[str, int],
    asked: float,
    fixed: Mapping[str, int],
    reserve: int,
) -> None:
    """Warn where the largest graph, not the target, decided the size of packs."""
    free = [column for column, axis in enumerate(table.axes) if axis not in fixed]
    limits = np.ceil(asked * table.values.mean(axis=0))[free].astype(np.int64)
    values = table.values[:, free]
    if (values.max(axis=0, initial=0) <= limits * _WORTH_A_WARNING).all():
        return
    giants = np.flatnonzero((values > limits).any(axis=1))
    wide = {table.axes[column]: limit + reserve for column, limit in zip(free, limits, strict=True)}
    raised = join_words(f"{axis} {size:,} -> {chosen[axis]:,}" for axis, size in wide.items())
    warn_user(
        f"{len(giants):,} of {len(table):,} graphs are larger than a pack of the size asked for, "
        f"so packs were made large enough for the largest ({raised}); ask for larger packs, or "
        "give these graphs batches of their own with torchkiln.packing.split_giants"
    )
