"""Blocks of a store's files, compared with their checksums before they are used for the first time.

A store is opened without reading its columns, which may be larger than the memory. So whoever reads
graphs has the blocks compared that these lie in. That happens once for each block, in a process and
those that it forks: afterwards a look at a flag is all it costs.
"""

from __future__ import annotations

import mmap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import numpy as np
from numpy.typing import NDArray
from xxhash import xxh3_64_intdigest

from torchkiln.core import StoreError
from torchkiln.graphs.store._checksums import BLOCK_BYTES, count_blocks

REMEDY = "build the store again (GraphStore.build(..., overwrite=True))"
# Compared at a time: lists of all blocks of a large store would take much memory.
_AT_ONCE = 2**14

Bytes = NDArray[np.uint8]
Counts = NDArray[np.int64]


@final
class BlockGuard:
    """Knows which blocks of mapped files were compared with their checksums.

    Args:
        files: The content of every file.
        checksums: Of the blocks of all files, one after the other.
    """

    def __init__(self, files: Sequence[tuple[Path, Bytes]], checksums: NDArray[Any]) -> None:
        counts = [count_blocks(len(content)) for _, content in files]
        assert sum(counts) == len(checksums), "checksums of other files"
        self._paths = [path for path, _ in files]
        self._contents = [content.data for _, content in files]
        self._begins = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        self._checksums = checksums
        # Memory that forked processes share: what one of them compared, no other has to.
        shared = mmap.mmap(-1, max(len(checksums), 1))
        self.verified: Bytes = np.frombuffer(shared, dtype=np.uint8, count=len(checksums))

    def first_block(self, path: Path) -> int:
        return int(self._begins[self._paths.index(path)])

    def verify_file(self, path: Path) -> None:
        """Compare all blocks of a file; see `verify_blocks`."""
        number = self._paths.index(path)
        self.verify_blocks(np.arange(self._begins[number], self._begins[number + 1]))

    def verify_all(self) -> None:
        """Compare whatever was not compared yet; see `verify_blocks`."""
        self.verify_blocks(np.flatnonzero(self.verified == 0))

    def verify_blocks(self, blocks: Counts) -> None:
        """Compare blocks with their checksums.

        Raises:
            StoreError: One of them is damaged.
        """
        for begin in range(0, len(blocks), _AT_ONCE):
            some = blocks[begin : begin + _AT_ONCE]
            self._compare(some)
            # Only now: another thread or process may look at the same moment.
            self.verified[some] = 1

    def _compare(self, blocks: Counts) -> None:
        files = np.searchsorted(self._begins, blocks, side="right") - 1
        begins = (blocks - self._begins[files]) * BLOCK_BYTES
        expected = self._checksums[blocks]
        for file, begin, checksum in zip(
            files.tolist(), begins.tolist(), expected.tolist(), strict=True
        ):
            block = self._contents[file][begin : begin + BLOCK_BYTES]
            if xxh3_64_intdigest(block) != checksum:
                raise StoreError(
                    f"{self._paths[file]} is damaged: bytes {begin} to {begin + len(block)} do not "
                    f"have their checksum; {REMEDY}"
                )


@dataclass(frozen=True, slots=True)
class Piece:
    """Where the graphs of a column lie in its file.

    Attributes:
        offsets: Of the axis that it follows, int64; None: every graph has one item.
        num_items: Of all graphs.
        item_bytes: Of one item.
        begin: Where the first item lies in the file.
        first_block: The file's first one among all blocks.
    """

    offsets: Counts | None
    num_items: int
    item_bytes: int
    begin: int
    first_block: int

    @property
    def blocks(self) -> tuple[int, int]:
        """Its first block, and the one after its last; none if it has no bytes."""
        end = self.begin + self.num_items * self.item_bytes
        if end == self.begin:
            return 0, 0
        return self.first_block + self.begin // BLOCK_BYTES, self.first_block + count_blocks(end)


@final
class Reads:
    """Some columns that somebody reads graphs of, again and again.

    Args:
        guard: Of their files.
        pieces: The columns.
        selected: The graphs that are ever read; None: all.
    """

    def __init__(self, guard: BlockGuard, pieces: Sequence[Piece], selected: Counts | None) -> None:
        self._guard = guard
        self._selected = selected
        self._is_complete = False
        self._pieces = list(pieces)  # keeps the offsets whose addresses kernels get
        self._ranges = np.array([piece.blocks for piece in pieces], dtype=np.int64).reshape(-1, 2)
        self._num_blocks = int(np.diff(self._ranges).sum())
        self._num_done = 0  # blocks, or selected graphs: see `_nothing_is_left`
        rows = [
            (
                0 if piece.offsets is None else piece.offsets.ctypes.data,
                piece.item_bytes,
                piece.begin,
                piece.first_block,
            )
            for piece in pieces
        ]
        self._table = np.array(rows, dtype=np.int64).reshape(-1, 4)

    def verify(self, graphs: Counts) -> None:
        """Compare the blocks that these graphs lie in, where it was not done yet.

        Raises:
            StoreError: One of them is damaged.
        """
        if self._is_complete:
            return
        from torchkiln.graphs.store._block_kernels import find_blocks

        blocks = find_blocks(self._table, graphs, self._guard.verified)
        if len(blocks):
            self._guard.verify_blocks(np.unique(blocks))
        # Looking at flags takes time, too, so it ends as soon as there is nothing to find.
        self._is_complete = self._nothing_is_left()

    def _nothing_is_left(self) -> bool:
        """Tell whether every block that is ever read was compared.

        A look begins where the one before met a block that was not, so all of them together are one
        pass over the blocks. What others compare, who read the same files, counts as well.
        """
        from torchkiln.graphs.store._block_kernels import skip_blocks, skip_graphs

        done, verified = self._num_done, self._guard.verified
        if self._selected is None:
            self._num_done = skip_blocks(self._ranges, done, verified)
            return self._num_done == self._num_blocks
        self._num_done = skip_graphs(self._table, self._selected, done, verified)
        return self._num_done == len(self._selected)
