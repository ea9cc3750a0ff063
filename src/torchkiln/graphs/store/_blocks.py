"""Checksums of a store's files, block by block, compared before a block is used for the first time.

A store is opened without reading its columns, which may be larger than the memory. So every 64 KiB
of a file have a checksum of their own, and whoever reads graphs has the blocks compared that these
lie in. That happens once for each block and process: afterwards a look at a flag is all it costs.

CRC-32 finds damage, not malice, and is the fastest that Python has: about twice SHA-256.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from torchkiln.core import StoreError

# Small, so that the first shuffled batch, whose graphs lie all over the files, comes soon.
BLOCK_BYTES = 2**16
REMEDY = "build the store again (GraphStore.build(..., overwrite=True))"

Bytes = NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Checksums:
    """What a file was when it was written: `blocks` are those of its parts, in order."""

    num_bytes: int
    sha256: str
    blocks: list[int]

    @classmethod
    def of(cls, path: Path) -> Checksums:
        whole = hashlib.sha256()
        blocks = []
        with path.open("rb") as file:
            while block := file.read(BLOCK_BYTES):
                whole.update(block)
                blocks.append(zlib.crc32(block))
            return cls(file.tell(), whole.hexdigest(), blocks)


def count_blocks(num_bytes: int) -> int:
    return -(-num_bytes // BLOCK_BYTES)


@final
class BlockGuard:
    """Knows which blocks of mapped files were compared with their checksums in this process.

    Args:
        files: The content of every file.
        checksums: Of the blocks of all files, one after the other, uint32.
    """

    def __init__(self, files: Sequence[tuple[Path, Bytes]], checksums: NDArray[Any]) -> None:
        counts = [count_blocks(len(content)) for _, content in files]
        assert sum(counts) == len(checksums), "checksums of other files"
        self._files = list(files)
        self._begins = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        self._checksums = checksums
        self.verified = np.zeros(len(checksums), dtype=np.uint8)

    def first_block(self, path: Path) -> int:
        return int(self._begins[self._number(path)])

    def verify_file(self, path: Path) -> None:
        """Compare all blocks of a file; see `verify_blocks`."""
        number = self._number(path)
        self.verify_blocks(range(int(self._begins[number]), int(self._begins[number + 1])))

    def verify_all(self) -> None:
        """Compare whatever was not compared yet; see `verify_blocks`."""
        self.verify_blocks(np.flatnonzero(self.verified == 0).tolist())

    def verify_blocks(self, blocks: Iterable[int]) -> None:
        """Compare blocks with their checksums.

        Raises:
            StoreError: One of them is damaged.
        """
        for block in blocks:
            number = int(np.searchsorted(self._begins, block, side="right")) - 1
            path, content = self._files[number]
            begin = (block - int(self._begins[number])) * BLOCK_BYTES
            if zlib.crc32(content[begin : begin + BLOCK_BYTES].data) != self._checksums[block]:
                end = min(begin + BLOCK_BYTES, len(content))
                raise StoreError(
                    f"{path} is damaged: bytes {begin} to {end} do not have their checksum; "
                    f"{REMEDY}"
                )
            # Only now: another thread may look at the same moment.
            self.verified[block] = 1

    def _number(self, path: Path) -> int:
        return next(number for number, (known, _) in enumerate(self._files) if known == path)


@dataclass(frozen=True, slots=True)
class Piece:
    """Where the graphs of a column lie in its file.

    Attributes:
        offsets: Of the axis that it follows, int64; None: every graph has one item.
        item_bytes: Of one item.
        begin: Where the first item lies in the file.
        first_block: The file's first one among all blocks.
    """

    offsets: NDArray[np.int64] | None
    item_bytes: int
    begin: int
    first_block: int


@final
class Reads:
    """Some columns that somebody reads graphs of, again and again.

    Args:
        guard: Of their files.
        pieces: The columns.
        num_graphs: How many graphs the store has.
        selected: Those that are ever read; None: all.
    """

    def __init__(
        self,
        guard: BlockGuard,
        pieces: Sequence[Piece],
        num_graphs: int,
        selected: NDArray[np.int64] | None,
    ) -> None:
        self._guard = guard
        self._num_graphs = num_graphs
        self._selected = selected
        self._num_seen = 0
        self._is_complete = False
        self._pieces = list(pieces)  # keeps the offsets whose addresses kernels get
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

    def verify(self, graphs: NDArray[np.int64]) -> None:
        """Compare the blocks that these graphs lie in, where it was not done yet.

        Raises:
            StoreError: One of them is damaged.
        """
        if self._is_complete:
            return
        from torchkiln.graphs.store._block_kernels import all_verified, find_blocks

        guard = self._guard
        if not all_verified(self._table, graphs, BLOCK_BYTES, guard.verified):
            found = np.zeros(len(guard.verified), dtype=np.uint8)
            find_blocks(self._table, graphs, BLOCK_BYTES, guard.verified, found)
            guard.verify_blocks(np.flatnonzero(found).tolist())
        # Looking at a few graphs again and again takes time, too. After about an epoch it is worth
        # to look at all of them once: what is never read stays unverified, so one cannot wait for
        # the last block.
        self._num_seen += len(graphs)
        every = self._num_graphs if self._selected is None else len(self._selected)
        if self._num_seen >= every:
            self._num_seen = 0
            chosen = np.arange(every) if self._selected is None else self._selected
            self._is_complete = bool(all_verified(self._table, chosen, BLOCK_BYTES, guard.verified))
