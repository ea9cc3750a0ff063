"""Compiled loops that find the blocks of files that graphs lie in.

`pieces` has a row for each column (see `Piece`): the address of its offsets or 0, bytes of an item,
where the first item lies in the file, and the number of the file's first block.
"""

# Numba has no types; its decorator hides those of the functions.
# mypy: allow-untyped-decorators

from __future__ import annotations

from typing import Any

from numba import njit

from torchkiln.graphs.batches._collate_kernels import read_integer


@njit(cache=True)
def _blocks_of(pieces: Any, piece: int, graph: int, block_bytes: int) -> tuple[int, int]:
    """Return the first block of a graph and the one after its last."""
    offsets, item_bytes, begin, first_block = pieces[piece]
    start, end = graph, graph + 1
    if offsets:
        start = read_integer(offsets + 8 * graph)
        end = read_integer(offsets + 8 * graph + 8)
    if start == end or item_bytes == 0:
        return 0, 0
    first = (begin + start * item_bytes) // block_bytes
    last = (begin + end * item_bytes - 1) // block_bytes
    return first_block + first, first_block + last + 1


@njit(cache=True)
def all_verified(pieces: Any, graphs: Any, block_bytes: int, verified: Any) -> bool:
    """Tell whether all blocks of these graphs are marked."""
    for piece in range(len(pieces)):
        for graph in graphs:
            first, end = _blocks_of(pieces, piece, graph, block_bytes)
            for block in range(first, end):
                if not verified[block]:
                    return False
    return True


@njit(cache=True)
def find_blocks(pieces: Any, graphs: Any, block_bytes: int, verified: Any, found: Any) -> None:
    """Mark in `found` the blocks of these graphs that `verified` does not."""
    for piece in range(len(pieces)):
        for graph in graphs:
            first, end = _blocks_of(pieces, piece, graph, block_bytes)
            for block in range(first, end):
                if not verified[block]:
                    found[block] = 1
