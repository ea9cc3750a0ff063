"""Compiled loops that find the blocks of files that graphs lie in.

`pieces` has a row for each column (see `Piece`): the address of its offsets or 0, bytes of an item,
where the first item lies in the file, and the number of the file's first block.
"""

# Numba has no types; its decorator hides those of the functions.
# mypy: allow-untyped-decorators

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from torchkiln.graphs.store._checksums import BLOCK_BYTES
from torchkiln.graphs.store._store_kernels import read_integer


@njit(cache=True)
def _blocks_of(pieces: Any, piece: int, graph: int) -> tuple[int, int]:
    """Return the first block of a graph and the one after its last."""
    offsets, item_bytes, begin, first_block = pieces[piece]
    start, end = graph, graph + 1
    if offsets:
        start = read_integer(offsets + 8 * graph)
        end = read_integer(offsets + 8 * graph + 8)
    if start == end or item_bytes == 0:
        return 0, 0
    first = (begin + start * item_bytes) // BLOCK_BYTES
    last = (begin + end * item_bytes - 1) // BLOCK_BYTES
    return first_block + first, first_block + last + 1


@njit(cache=True)
def find_blocks(pieces: Any, graphs: Any, verified: Any) -> Any:
    """Return the blocks of these graphs that are not verified, some of them several times."""
    count = 0
    for piece in range(len(pieces)):
        for graph in graphs:
            first, end = _blocks_of(pieces, piece, graph)
            for block in range(first, end):
                count += not verified[block]
    found = np.empty(count, dtype=np.int64)
    if not count:
        return found
    filled = 0
    for piece in range(len(pieces)):
        for graph in graphs:
            first, end = _blocks_of(pieces, piece, graph)
            for block in range(first, end):
                if not verified[block]:
                    found[filled] = block
                    filled += 1
    return found[:filled]  # another thread or process may have verified some meanwhile


@njit(cache=True)
def skip_blocks(ranges: Any, done: int, verified: Any) -> Any:
    """Return how many blocks of these ranges, of which `done` are, come before one that is not."""
    passed = 0
    for row in range(len(ranges)):
        first, end = ranges[row]
        for block in range(first + max(done - passed, 0), end):
            if not verified[block]:
                return passed + block - first
        passed += end - first
    return passed


@njit(cache=True)
def skip_graphs(pieces: Any, graphs: Any, done: int, verified: Any) -> int:
    """Return how many of these graphs, of which `done` are, come before one that is not."""
    for number in range(done, len(graphs)):
        for piece in range(len(pieces)):
            first, end = _blocks_of(pieces, piece, graphs[number])
            for block in range(first, end):
                if not verified[block]:
                    return number
    return len(graphs)
