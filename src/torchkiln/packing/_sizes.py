"""Sizes of graphs and slots of packs, checked and brought into the one form that kernels read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from torchkiln.core import OptionsError

Integers = NDArray[np.int64]
GRAPHS = "graphs"


@dataclass(frozen=True, slots=True)
class SizeTable:
    """How much every graph takes of every axis: `values` is [num_graphs, num_axes]."""

    axes: tuple[str, ...]
    values: Integers

    @classmethod
    def read(cls, sizes: Mapping[str, ArrayLike]) -> SizeTable:
        """Check one array of whole numbers per axis, all of one length."""
        if not isinstance(sizes, Mapping) or not sizes:
            raise OptionsError(
                f"sizes must be a dict of arrays by axis, such as "
                f"{{'nodes': num_nodes, 'edges': num_edges}}; got {_describe(sizes)}"
            )
        if GRAPHS in sizes:
            raise OptionsError(
                "sizes must not have an axis 'graphs': each graph counts as one; limit their "
                "number with slots['graphs']"
            )
        columns = {axis: _read_column(axis, column) for axis, column in sizes.items()}
        lengths = {axis: len(column) for axis, column in columns.items()}
        if len(set(lengths.values())) > 1:
            raise OptionsError(
                f"sizes must have one entry per graph on every axis, got lengths {lengths}; "
                "the arrays belong to different datasets or subsets"
            )
        return cls(tuple(columns), np.stack(list(columns.values()), axis=1))

    def __len__(self) -> int:
        return len(self.values)

    def describe(self, graph: int) -> str:
        """Return the sizes of one graph in words: '29 nodes and 56 edges'."""
        return join_words(
            f"{size:,} {axis}" for axis, size in zip(self.axes, self.values[graph], strict=True)
        )

    def with_graphs(self) -> Integers:
        """Return the sizes with the axis of graphs, on which every graph takes one, as last."""
        return np.concatenate([self.values, np.ones((len(self), 1), dtype=np.int64)], axis=1)


def read_slots(slots: Mapping[str, int], axes: tuple[str, ...], reserve: int) -> dict[str, int]:
    """Check that every axis has slots, in the order of the axes and with 'graphs' last."""
    wanted = (*axes, GRAPHS)
    missing = [axis for axis in wanted if axis not in slots]
    if missing:
        raise OptionsError(
            f"slots have no entry for {join_words(map(repr, missing))}: got {dict(slots)}; add it, "
            "or let choose_slots(sizes, nodes=...) choose"
        )
    unknown = [axis for axis in slots if axis not in wanted]
    if unknown:
        raise OptionsError(
            f"slots name {join_words(map(repr, unknown))}, which sizes do not have; "
            f"axes are {join_words(wanted)}"
        )
    if reserve < 0:
        raise OptionsError(f"reserve must not be negative, got {reserve}")
    checked = {axis: _read_slot(axis, slots[axis]) for axis in wanted}
    if checked[GRAPHS] <= reserve:
        raise OptionsError(
            f"slots['graphs'] is {checked[GRAPHS]}, of which {reserve} stay filler: no graph fits; "
            f"give at least {reserve + 1}"
        )
    return checked


def capacities(slots: Mapping[str, int], reserve: int) -> Integers:
    """Return what real graphs may take of each axis, in the order of `slots`."""
    return np.array([max(size - reserve, 0) for size in slots.values()], dtype=np.int64)


def join_words(words: Iterable[str]) -> str:
    """Join as in a sentence: 'a, b and c'."""
    items = list(words)
    return items[0] if len(items) == 1 else f"{', '.join(items[:-1])} and {items[-1]}"


def _read_column(axis: str, column: ArrayLike) -> Integers:
    array = np.asarray(column)
    if array.ndim != 1:
        raise OptionsError(
            f"sizes[{axis!r}] must have one number per graph, got shape {list(array.shape)}"
        )
    if array.size == 0:
        return np.zeros(0, dtype=np.int64)
    if array.dtype.kind not in "iu":
        raise OptionsError(
            f"sizes[{axis!r}] are {array.dtype}, but sizes count things; convert them with "
            "np.asarray(sizes, dtype=np.int64)"
        )
    array = array.astype(np.int64)
    if array.min() < 0:
        graph = int(np.argmin(array))
        raise OptionsError(
            f"sizes[{axis!r}][{graph}] is {array[graph]}; sizes must not be negative"
        )
    return array


def _read_slot(axis: str, slot: int) -> int:
    if isinstance(slot, bool) or not isinstance(slot, int | np.integer):
        raise OptionsError(f"slots[{axis!r}] must be a whole number, got {slot!r}")
    if slot < 0:
        raise OptionsError(f"slots[{axis!r}] must not be negative, got {slot}")
    return int(slot)


def _describe(value: object) -> str:
    return "an empty dict" if isinstance(value, Mapping) else f"a {type(value).__name__}"
