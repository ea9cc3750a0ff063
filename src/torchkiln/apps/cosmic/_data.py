"""Events of a run, and the order in which epochs visit them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import final

import torch
from torch import Tensor
from torch.utils.data import Sampler

from torchkiln.apps.cosmic._settings import DataSettings
from torchkiln.core import OptionsError
from torchkiln.datasets.cosmic import CosmicImages, load_cosmic


def load_training_events(data: DataSettings) -> CosmicImages:
    """Return the images to train on."""
    return _load(data, data.file, data.num_events, data.seed)


def load_held_out_events(data: DataSettings) -> CosmicImages:
    """Return the images to judge by; with a file and no other, they are those of the file."""
    return _load(data, data.aux_file or data.file, data.num_aux_events, data.aux_seed)


def _load(data: DataSettings, root: Path | None, num_events: int, seed: int) -> CosmicImages:
    return load_cosmic(
        root,
        num_events=num_events,
        seed=seed,
        downsample=data.downsample,
        pooling=data.pooling,
        in_memory=data.in_memory,
        progress=True,
    )


def describe_events(data: DataSettings) -> str:
    """Say where the events of training and those held out come from."""
    if data.file is None:
        train = f"{data.num_events:,} generated events (seed {data.seed})"
    else:
        train = f"events of {data.file}"
    if data.aux_file is not None:
        return f"{train}, held out: {data.aux_file}"
    if data.file is not None:
        return f"{train}, judged by the same events"
    return f"{train}, held out: {data.num_aux_events:,} (seed {data.aux_seed})"


@final
@dataclass(frozen=True, slots=True)
class Share:
    """Which mini-batches of all are a process' own: they are dealt in turn.

    Args:
        minibatch_size: Events in a mini-batch.
        rank: This process.
        size: How many processes there are.
    """

    minibatch_size: int
    rank: int = 0
    size: int = 1

    @property
    def round(self) -> int:
        """Events of one mini-batch in each process."""
        return self.minibatch_size * self.size

    def of(self, events: Tensor) -> Tensor:
        """Return this process' events; there are whole rounds of them."""
        return events.view(-1, self.size, self.minibatch_size)[:, self.rank].reshape(-1)


@final
class ShuffledOrder(Sampler[int]):
    """Whole batches of an epoch in an order that depends on (seed, epoch) alone.

    Events that do not fill a batch are left out, others in each epoch.

    Args:
        num_events: How many there are.
        batch_size: Events in a batch, of all processes together.
        seed: Of all epochs.
        share: Which of them this process reads; None: all.

    Raises:
        OptionsError: There are too few events for one batch.
    """

    def __init__(
        self, num_events: int, batch_size: int, seed: int, share: Share | None = None
    ) -> None:
        self._share = share or Share(batch_size)
        if num_events < batch_size:
            processes = " times the number of processes" if self._share.size > 1 else ""
            raise OptionsError(
                f"an update takes {batch_size} events, run.minibatch_size times "
                f"mode.optimizer.gradient_accumulation{processes}, but there are only {num_events}"
            )
        self._num_events = num_events
        self._batch_size = batch_size
        self._seed = seed
        self._epoch, self._first_batch = 0, 0

    @property
    def num_batches(self) -> int:
        """Batches in a whole epoch."""
        return self._num_events // self._batch_size

    def set_position(self, epoch: int, batch: int) -> None:
        """Let the next pass begin there."""
        self._epoch, self._first_batch = epoch, batch

    def __len__(self) -> int:
        return (self.num_batches - self._first_batch) * self._batch_size // self._share.size

    def __iter__(self) -> Iterator[int]:
        generator = torch.Generator().manual_seed(self._seed * 1_000_003 + self._epoch)
        order = torch.randperm(self._num_events, generator=generator)
        chosen = order[self._first_batch * self._batch_size : self.num_batches * self._batch_size]
        return iter(self._share.of(chosen).tolist())


@final
class PaddedOrder(Sampler[int]):
    """Every event once, in order, and the last one again until the last batch is full.

    Args:
        num_events: How many there are.
        share: Which of them this process reads, and how many at a time.
    """

    def __init__(self, num_events: int, share: Share) -> None:
        self._num_events = num_events
        self._share = share
        self._num_rounds = -(-num_events // share.round)

    def numbers(self, batch: int) -> range:
        """Return which events one of this process' batches begins with; the rest is filler."""
        size = self._share.minibatch_size
        first = (batch * self._share.size + self._share.rank) * size
        return range(first, max(min(first + size, self._num_events), first))

    def __len__(self) -> int:
        return self._num_rounds * self._share.minibatch_size

    def __iter__(self) -> Iterator[int]:
        slots = torch.arange(self._num_rounds * self._share.round)
        return iter(self._share.of(slots.clamp(max=self._num_events - 1)).tolist())
