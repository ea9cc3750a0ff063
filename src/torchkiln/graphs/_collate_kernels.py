"""Compiled loops of collation. Attributes are copied as bytes, whatever they mean.

An *entry* is one graph slot of a (combined) batch, real or filler: `starts` says where its nodes or
edges begin in the store, `FILLER` or `TRIMMED` if they do not come from there in one piece.
"""

# Numba has no types; its decorator hides those of the functions.
# mypy: allow-untyped-decorators

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

FILLER = -1
TRIMMED = -2  # written by somebody else


@intrinsic
def copy_bytes(_context: Any, target: Any, at: Any, source: Any, begin: Any, length: Any) -> Any:
    """Copy `length` bytes between arrays; `at` and `begin` count bytes.

    Three times as fast as a loop where graphs lie all over the memory: the processor already waits
    for the next graph while it copies this one.
    """
    signature = types.void(target, at, source, begin, length)

    def generate(context: Any, builder: Any, sig: Any, arguments: Any) -> Any:
        pointers = []
        for array, offset in ((0, 1), (2, 3)):
            data = context.make_array(sig.args[array])(context, builder, arguments[array]).data
            data = builder.bitcast(data, ir.IntType(8).as_pointer())
            pointers.append(builder.gep(data, [arguments[offset]]))
        cgutils.raw_memcpy(builder, *pointers, arguments[4], 1)
        return context.get_dummy_value()

    return signature, generate


@njit(cache=True)
def locate(
    offsets: Any, graphs: Any, packs: Any, num_graphs: int, starts: Any, counts: Any, totals: Any
) -> None:
    """Find where every real entry lies, and add up what each pack holds."""
    for pack in range(len(packs) - 1):
        entry = pack * num_graphs
        total = 0
        for position in range(packs[pack], packs[pack + 1]):
            graph = graphs[position]
            starts[entry] = offsets[graph]
            count = offsets[graph + 1] - offsets[graph]
            counts[entry] = count
            total += count
            entry += 1
        totals[pack] = total
        for rest in range(entry, (pack + 1) * num_graphs):
            starts[rest] = FILLER
            counts[rest] = 0


@njit(cache=True)
def locate_graphs(
    graphs: Any, packs: Any, num_graphs: int, starts: Any, counts: Any, totals: Any
) -> None:
    """Do the same for the graphs themselves, which are one each."""
    for pack in range(len(packs) - 1):
        entry = pack * num_graphs
        for position in range(packs[pack], packs[pack + 1]):
            starts[entry] = graphs[position]
            counts[entry] = 1
            entry += 1
        totals[pack] = packs[pack + 1] - packs[pack]
        for rest in range(entry, (pack + 1) * num_graphs):
            starts[rest] = FILLER
            counts[rest] = 1


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
def gather(
    source: Any, target: Any, at: int, starts: Any, counts: Any, width: int, filling: Any
) -> None:
    """Copy entry after entry, `width` bytes for each node, edge or graph; fill the rest."""
    position = at
    for entry in range(len(starts)):
        start = starts[entry]
        length = counts[entry] * width
        if start >= 0:
            copy_bytes(target, position, source, start * width, length)
        elif start == FILLER:
            for item in range(position, position + length, width):
                copy_bytes(target, item, filling, 0, width)
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
    for row in range(2):
        ptr_at = target_ptr_at if row else source_ptr_at
        begin = row * source.shape[1]
        for pack in range(len(starts) // num_graphs):
            position = at + (2 * pack + row) * num_edges
            for entry in range(pack * num_graphs, (pack + 1) * num_graphs):
                start, count = starts[entry], counts[entry]
                if start >= 0:
                    copy_bytes(
                        target, position * size, source, (begin + start) * size, count * size
                    )
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


@njit(cache=True)
def find_stray_edge(ends: Any, edges: Any, nodes: Any) -> int:
    """Return the first graph with an edge to a node that it does not have, or -1."""
    for graph in range(len(nodes)):
        for edge in range(edges[graph], edges[graph + 1]):
            if ends[edge] < 0 or ends[edge] >= nodes[graph]:
                return graph
    return -1
