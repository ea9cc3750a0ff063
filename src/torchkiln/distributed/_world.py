"""`World`: the processes that train one model together, and this one's place among them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from torchkiln.core import Options


@final
@dataclass(frozen=True, slots=True)
class World:
    """All processes of a run, and which of them this is.

    Args:
        rank: This process, from 0.
        size: How many there are.
        local_rank: This process among those on its host.
        local_size: How many of them are on its host.
    """

    rank: int
    size: int
    local_rank: int
    local_size: int

    @property
    def is_first(self) -> bool:
        """Whether this process speaks and writes for all."""
        return self.rank == 0

    def options(self, options: Options | None = None) -> Options:
        """Return `options` for this process of the run."""
        chosen = options or Options()
        return chosen.replace(num_processes=self.size, process_id=self.rank)
