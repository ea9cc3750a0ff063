"""Batches of molecules on their way from a loader to a step."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np
import torch
from torch import Tensor

from torchkiln.graphs import FixedSizeLoader
from torchkiln.training._batches import Position

# Arguments of MoleculeRegression.forward, which are attributes of a batch.
FIELDS = ("z", "edge_index", "edge_weight", "edge_ways", "batch", "y", "graph_mask")


def arguments_of(batch: Any) -> dict[str, Tensor]:
    """Return what the model takes of a batch, by name."""
    return {name: batch[name] for name in FIELDS}


def count_real(batch: Any, num_parts: int) -> Tensor:
    """Return the number of real molecules in each mini-batch of a combined batch."""
    mask: Tensor = batch.graph_mask
    return mask.view(num_parts, -1).sum(dim=1)


def real_indices(batch: Any, num_parts: int, part: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Return which molecules of the dataset are in one mini-batch of a combined batch."""
    mask = batch.graph_mask.view(num_parts, -1)[part]
    indices: Tensor = batch.index.view(num_parts, -1)[part][mask]
    return indices.numpy()


@final
class SyntheticBatches:
    """One batch of a loader, again and again: what a run costs without loading."""

    def __init__(self, loader: FixedSizeLoader) -> None:
        self._loader = loader
        loader.set_epoch(0)
        batches = iter(loader)
        self._batch = next(batches).clone()
        self._identity = loader.state_dict()["identity"]
        loader.terminate()
        self._epoch, self._done = 0, 0

    def num_batches(self, epoch: int) -> int:
        return self._loader.num_batches(epoch)

    def read(self, epoch: int) -> Iterator[Any]:
        if self._epoch != epoch:
            self._epoch, self._done = epoch, 0
        for done in range(self._done + 1, self.num_batches(epoch) + 1):
            self._done = done
            yield self._batch
        self._epoch, self._done = epoch + 1, 0

    @property
    def position(self) -> Position:
        epoch, done = self._epoch, self._done
        return Position(epoch + 1, 0) if done >= self.num_batches(epoch) else Position(epoch, done)

    def state_dict(self) -> dict[str, Any]:
        return {
            **dict(zip(self.position._fields, self.position, strict=True)),
            "identity": self._identity,
        }

    def tensors(self) -> dict[str, Tensor]:
        return {}

    def load_state_dict(self, state: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
        self._loader.load_state_dict(state)  # checks it
        self._epoch, self._done = state["epoch"], state["done"]


@dataclass(frozen=True, slots=True)
class LoaderTiming:
    """How fast batches come when nothing else is done.

    Args:
        batches: Batches (combined ones) that were read.
        molecules: Real ones in them.
        seconds: Start of the processes included.
    """

    batches: int
    molecules: int
    seconds: float

    @property
    def molecules_per_s(self) -> float:
        return self.molecules / self.seconds if self.seconds else 0.0

    @property
    def batches_per_s(self) -> float:
        return self.batches / self.seconds if self.seconds else 0.0

    @classmethod
    def of_all(cls, by_rank: Sequence[LoaderTiming]) -> LoaderTiming:
        """Return what several processes read in an epoch, in the time of the slowest."""
        return cls(
            sum(one.batches for one in by_rank),
            sum(one.molecules for one in by_rank),
            max(one.seconds for one in by_rank),
        )

    def to_record(self) -> dict[str, float]:
        """Return all figures, the rates included, in JSON types."""
        rates = {"molecules_per_s": self.molecules_per_s, "batches_per_s": self.batches_per_s}
        return {**dataclasses.asdict(self), **rates}


def time_dataloader(loader: FixedSizeLoader, *, num_epochs: int = 1) -> list[LoaderTiming]:
    """Read whole epochs and throw them away; return one figure an epoch.

    Each byte of a batch is touched by the loader itself; the first epoch also starts workers and
    loads compiled loops, so look at the later ones for a steady figure.
    """
    timings = []
    try:
        for epoch in range(num_epochs):
            loader.set_epoch(epoch)
            batches, molecules, start = 0, torch.zeros((), dtype=torch.long), time.perf_counter()
            for batch in loader:
                batches += 1
                molecules += batch.graph_mask.sum()
            timings.append(LoaderTiming(batches, int(molecules), time.perf_counter() - start))
    finally:
        loader.terminate()
    return timings
