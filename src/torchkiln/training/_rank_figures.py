"""How fast each of several processes was, and how long it waited for the others."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import final

import torch

from torchkiln.report._record import RankRecord, WorldRecord
from torchkiln.training._ranks import Ranks


@dataclass(slots=True)
class _Epoch:
    """What this process did in an epoch."""

    samples: int = 0
    seconds: float = 0.0
    collective_seconds: float = 0.0


@final
class RankFigures:
    """Counts what this process trains on, and its time in collectives.

    Args:
        ranks: The processes of the run.
    """

    def __init__(self, ranks: Ranks) -> None:
        self._ranks = ranks
        self._epochs: list[_Epoch] = []

    def begin_epoch(self) -> None:
        """Count from now on by itself."""
        self._epochs.append(_Epoch())

    @contextmanager
    def step(self) -> Iterator[None]:
        """Count the time in collectives meanwhile."""
        before = self._ranks.collective_seconds
        yield
        self._epochs[-1].collective_seconds += self._ranks.collective_seconds - before

    def take(self, samples: int, seconds: float) -> None:
        """Count one step: real samples of this process, and its seconds."""
        self._epochs[-1].samples += samples
        self._epochs[-1].seconds += seconds

    def gather(self) -> WorldRecord | None:
        """Return the figures of all processes; None if there is one.

        Those of the first epoch, which warms caches up, count only if there is no other.
        """
        if self._ranks.size == 1:
            return None
        counted = self._epochs[1:] or self._epochs
        samples = sum(epoch.samples for epoch in counted)
        # Stages of one model share what it is trained on.
        stages = self._ranks.num_stages
        share = (samples + self._ranks.rank % stages) // stages
        own = RankRecord(
            host=socket.gethostname(),
            threads=torch.get_num_threads(),
            samples=share,
            seconds=sum(epoch.seconds for epoch in counted),
            collective_seconds=sum(epoch.collective_seconds for epoch in counted),
        )
        return WorldRecord(tuple(self._ranks.gather(own)))
