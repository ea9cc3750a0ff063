"""Compiled loops of collation. Attributes are copied as bytes, whatever they mean.

An *entry* is one graph slot of a (combined) batch, real or filler: `starts` says where its nodes or
edges begin in the store, `FILLER` or `TRIMMED` if they do not come from there in one piece.
"""

# Numba has no types; its decorator hides those of the functions.
# mypy: allow-untyped-decorators

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from torchkiln.graphs.store._store_kernels import copy_bytes, read_integer

FILLER = -1
TRIMMED = -2  # written by somebody else


@njit(cache=True)
def locate(
    offsets: Any, graphs: Any, packs: Any, num_graphs: int, starts: Any, counts: Any, totals: Any
) -> None:
    """Find where every real entry lies on each axis, and add up what each pack holds.

    Args:
        offsets: Addresses of the offsets of each axis; the last row of the results is for the
            graphs themselves, which are one each.
        graphs: Of all packs.
        packs: Where each pack ends among them, from 0 on.
        num_graphs: Entries in a pack.
        starts: Result, [axes + 1, entries].
        counts: Result, [axes + 1, entries].
        totals: Result, [axes + 1, packs].
    """
    last = len(offsets)
    for axis in range(last + 1):
        for pack in range(len(packs) - 1):
            entry = pack * num_graphs
            total = 0
            for position in range(packs[pack], packs[pack + 1]):
                start, count = graphs[position], 1
                if axis < last:
                    address = offsets[axis] + 8 * graphs[position]
                    start = read_integer(address)
                    count = read_integer(address + 8) - start
                starts[axis, entry] = start
                counts[axis, entry] = count
                total += count
                entry += 1
            totals[axis, pack] = total
            for rest in range(entry, (pack + 1) * num_graphs):
                starts[axis, rest] = FILLER
                counts[axis, rest] = axis == last


@njit(cache=True)
def write_frame(
    counts: Any,
    totals: Any,
    num_graphs: int,
    limits: Any,
    batch_at: Any,
    ptr_at: Any,
    mask_at: Any,
    integers: Any,
    flags: Any,
) -> None:
    """Write `batch`, `ptr` and the mask of every axis that has a place for it (not -1).

    They begin anew in each pack.
    """
    for axis in range(len(limits)):
        for pack in range(totals.shape[1]):
            if ptr_at[axis] >= 0:
                ptr = ptr_at[axis] + pack * (num_graphs + 1)
                total = 0
                integers[ptr] = 0
                for graph in range(num_graphs):
                    total += counts[axis, pack * num_graphs + graph]
                    integers[ptr + 1 + graph] = total
            if batch_at[axis] >= 0:
                node = batch_at[axis] + pack * limits[axis]
                for graph in range(num_graphs):
                    for _ in range(counts[axis, pack * num_graphs + graph]):
                        integers[node] = graph
                        node += 1
            if mask_at[axis] >= 0:
                begin = mask_at[axis] + pack * limits[axis]
                end = begin + totals[axis, pack]
                flags[begin:end] = 1
                flags[end : begin + limits[axis]] = 0


@njit(cache=True)
def gather(copies: Any, starts: Any, counts: Any, target: Any) -> None:
    """Copy entry after entry of each attribute, and fill the rest.

    Args:
        copies: For each attribute: address of its column, row of its axis, where it begins in the
            target, bytes for each node, edge or graph, and address of what filler holds of these.
        starts: Where each entry begins, by axis.
        counts: How many it has, by axis.
        target: Bytes of the batch.
    """
    memory = np.int64(target.ctypes.data)
    for copy in range(len(copies)):
        source, axis, at, width, filling = copies[copy]
        position = memory + at
        for entry in range(starts.shape[1]):
            start = starts[axis, entry]
            length = counts[axis, entry] * width
            if start >= 0:
                copy_bytes(position, source + start * width, length)
            elif start == FILLER:
                for item in range(position, position + length, width):
                    copy_bytes(item, filling, width)
            position += length


@njit(cache=True)
def gather_edges(
    source: Any,
    target: Any,
    at: int,
    num_edges: int,
    num_graphs: int,
    starts: Any,
    counts: Any,
    integers: Any,
    source_ptr_at: int,
    target_ptr_at: int,
) -> None:
    """Copy edge indices, counted up by the nodes before their graph; filler loops on its first."""
    size = source.itemsize
    memory = np.int64(target.ctypes.data)
    for row in range(2):
        ptr_at = target_ptr_at if row else source_ptr_at
        begin = np.int64(source.ctypes.data) + row * source.shape[1] * size
        for pack in range(len(starts) // num_graphs):
            position = at + (2 * pack + row) * num_edges
            for entry in range(pack * num_graphs, (pack + 1) * num_graphs):
                start, count = starts[entry], counts[entry]
                if start >= 0:
                    copy_bytes(memory + position * size, begin + start * size, count * size)
                elif start == FILLER:
                    target[position : position + count] = 0
                position += count
            # In a second pass, when what was copied has arrived.
            position = at + (2 * pack + row) * num_edges
            for graph in range(num_graphs):
                entry = pack * num_graphs + graph
                first = integers[ptr_at + pack * (num_graphs + 1) + graph]
                for edge in range(position, position + counts[entry]):
                    target[edge] += first
                position += counts[entry]
