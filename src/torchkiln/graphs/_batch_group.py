"""Several batches made at once, in one piece of memory that is sent to another process."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor

from torchkiln.graphs._collate import Collator
from torchkiln.graphs._epoch_plan import WorkItem
from torchkiln.graphs._gather import Gathered

# Telling another process about a batch takes as long as making a small one: so several go together,
# as long as they are small.
_MAX_BATCHES = 8
_MAX_BYTES = 4 * 2**20


def group_size(collator: Collator) -> int:
    """Return how many batches to send at once."""
    return max(1, min(_MAX_BATCHES, _MAX_BYTES // max(collator.num_bytes, 1)))


@final
@dataclass(frozen=True, slots=True)
class BatchGroup:
    """Batches before they are wrapped; row `i` of `memory` is batch `i`."""

    memory: Tensor
    texts: list[tuple[list[Any], ...]]

    def __iter__(self) -> Iterator[Gathered]:
        return (Gathered(row, texts) for row, texts in zip(self.memory, self.texts, strict=True))


@final
class GroupMaker:
    """Gathers the batches of a work item, here or in a worker.

    Args:
        collator: Makes one batch.
        trim_seed: Graphs that are too large are trimmed by this seed; None: there are none.
    """

    def __init__(self, collator: Collator, trim_seed: int | None) -> None:
        self._collator = collator
        self._trim_seed = trim_seed

    def __call__(self, item: WorkItem) -> BatchGroup:
        """Return the batches of an item."""
        trim = None if self._trim_seed is None else (self._trim_seed, item.epoch)
        shape = (len(item.batches), self._collator.num_bytes)
        memory = torch.empty(shape, dtype=torch.uint8)
        texts = [
            self._collator.gather(packs, trim=trim, memory=row).texts
            for packs, row in zip(item.batches, memory, strict=True)
        ]
        return BatchGroup(memory, texts)
