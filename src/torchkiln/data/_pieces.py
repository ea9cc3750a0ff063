"""Pieces of combined batches, which workers load one by one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from torch.utils.data import BatchSampler, Sampler


class PieceSampler(Sampler[list[int]]):
    """Yields the indices of combined batches in pieces, none of which belongs to two batches.

    So pieces are joined without being cut, which needs nothing to be known about their tensors: in
    batches of graphs each may have another length.

    Args:
        sampler: The order of all elements.
        combined_size: Elements in a combined batch.
        piece_size: Elements in a piece; the last one of a batch may have fewer.
        drop_last: Leave out an incomplete last batch.
    """

    def __init__(
        self,
        sampler: Sampler[Any] | Iterable[Any],
        combined_size: int,
        piece_size: int,
        drop_last: bool,
    ) -> None:
        self._batches = BatchSampler(sampler, combined_size, drop_last)
        self._piece_size = piece_size
        self.num_pieces = -(-combined_size // piece_size)

    def __iter__(self) -> Iterator[list[int]]:
        for batch in self._batches:
            for start in range(0, len(batch), self._piece_size):
                yield batch[start : start + self._piece_size]
